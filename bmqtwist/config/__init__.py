"""Configuration files: declaration of all members, decoding, validation, composition."""
