"""headtree: how a transformer's attention is organized.

The public names are listed once, in ``__init__.pyi``, and imported on first use.
"""

import lazy_loader

from headtree._version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
