"""What bytes mean: headers, control messages, properties. Pure."""
