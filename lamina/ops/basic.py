"""The ops that others are composed of, under one name: `from lamina.ops import basic as ops`."""

from lamina.ops.arithmetic import *
from lamina.ops.broadcast import *
from lamina.ops.clipping import *
from lamina.ops.comparison import *
from lamina.ops.conversion import *
from lamina.ops.creation import *
from lamina.ops.division import *
from lamina.ops.elementwise import *
from lamina.ops.indexing import *
from lamina.ops.joining import *
from lamina.ops.linalg import *
from lamina.ops.movement import *
from lamina.ops.reduce import *
from lamina.ops.slicing import *
