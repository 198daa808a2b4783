"""`python -m shakedown.load …`: Locust, with the users of `locustfile.py`; takes Locust's options."""

import os
import sys
from pathlib import Path

LOCUSTFILE = Path(__file__).with_name("locustfile.py")

os.environ["LOCUST_SKIP_MONKEY_PATCH"] = "1"
os.execv(sys.executable, [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), *sys.argv[1:]])
