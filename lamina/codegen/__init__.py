"""What every generated engine shares: from programs to text, for no device in particular."""
