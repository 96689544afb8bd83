"""The losses under the path that users import: the module `lamina.learning.losses` itself."""

import sys

from lamina.learning import losses
from lamina.learning.losses import *  # noqa: F403 (for type checkers)

sys.modules[__name__] = losses
