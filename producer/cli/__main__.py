"""``python -m producer.cli``: the command line without its installed script."""

import sys

from producer.cli.entry import main

sys.exit(main())
