"""Code generation shared by all engines that compile: from programs to text, for any device."""
