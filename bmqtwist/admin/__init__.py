"""Admin commands: declared, parsed, run, answered as text or JSON."""
