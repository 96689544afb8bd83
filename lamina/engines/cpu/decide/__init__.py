"""What is decided about a program before anything is written: what is packed, cut, summed where."""
