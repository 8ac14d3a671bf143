"""The program for spark-submit: `spark-submit --master … deploy/pipeline.py run --input … --output …`."""

from __future__ import annotations

import sys

from dispatcher.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["pipeline"]
    main()
