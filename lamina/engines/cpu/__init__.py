"""The CPU engine: machine code for exactly this program and this processor, through llvmlite."""
