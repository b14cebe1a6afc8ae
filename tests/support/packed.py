"""gzip without the time: in a test's parameters it gives each worker, by its second, tests of other names."""

import gzip
from functools import partial

packed = partial(gzip.compress, mtime=0)
