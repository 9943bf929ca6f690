"""What configuration files say: every member declared once, read, checked, composed."""
