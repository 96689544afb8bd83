"""The CPU engine: machine code for exactly one program and this processor, through llvmlite."""
