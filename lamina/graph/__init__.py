"""Graphs of tensors and ops: the user's computation, before the compiler decides anything.

Comes in: records of ops, and operands. Leaves: immutable graphs. Nothing here knows a single op, a
layer or an engine. Read `tensor.py` first, then `apply.py`.
"""

from lamina.graph.apply import apply as apply
from lamina.graph.apply import constant as constant
from lamina.graph.apply import leaf as leaf
from lamina.graph.apply import rebuild as rebuild
from lamina.graph.apply import rewrite as rewrite
from lamina.graph.graph import Graph as Graph
from lamina.graph.graph import reached_all as reached_all
from lamina.graph.graph import reached_ends as reached_ends
from lamina.graph.graph import topological as topological
from lamina.graph.graph import users_of as users_of
from lamina.graph.hyperparameters import Fields as Fields
from lamina.graph.hyperparameters import Hyperparameter as Hyperparameter
from lamina.graph.hyperparameters import Hyperparameters as Hyperparameters
from lamina.graph.hyperparameters import of_numbers as of_numbers
from lamina.graph.leaves import CONSTANT as CONSTANT
from lamina.graph.leaves import LEAF as LEAF
from lamina.graph.leaves import ConstantValue as ConstantValue
from lamina.graph.leaves import Leaf as Leaf
from lamina.graph.methods import operator as operator
from lamina.graph.operations import bind_batch as bind_batch
from lamina.graph.operations import evaluate as evaluate
from lamina.graph.operations import show as show
from lamina.graph.operations import verify as verify
from lamina.graph.paths import described as described
from lamina.graph.paths import path_after as path_after
from lamina.graph.paths import with_final_paths as with_final_paths
from lamina.graph.tensor import OPS as OPS
from lamina.graph.tensor import Attributes as Attributes
from lamina.graph.tensor import LoweringRule as LoweringRule
from lamina.graph.tensor import Op as Op
from lamina.graph.tensor import Sample as Sample
from lamina.graph.tensor import Samples as Samples
from lamina.graph.tensor import Tensor as Tensor
from lamina.graph.tensor import TensorLike as TensorLike
