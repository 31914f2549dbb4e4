# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run runc without CAP_SYS_RESOURCE, which the root user of some machines lacks.

`docker run --privileged` and `docker exec --privileged` request the capability.
"""

import json
import os
import sys


def drop_capability(process):
    """Remove the capability, and a negative oom_score_adj, which requires it, from a process.

    process: as in an OCI specification.
    """
    capabilities = process.get("capabilities") or {}
    for names in capabilities.values():
        if "CAP_SYS_RESOURCE" in (names or ()):
            names.remove("CAP_SYS_RESOURCE")
    if (process.get("oomScoreAdj") or 0) < 0:
        process["oomScoreAdj"] = 0


def rewrite(path, process_of):
    """Drop the capability in a JSON file. process_of: returns the process in the content."""
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    drop_capability(process_of(content))
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file)


arguments = sys.argv[1:]
if "create" in arguments and "--bundle" in arguments:
    bundle = arguments[arguments.index("--bundle") + 1]
    rewrite(os.path.join(bundle, "config.json"), lambda config: config.get("process") or {})
elif "exec" in arguments and "--process" in arguments:
    rewrite(arguments[arguments.index("--process") + 1], lambda process: process)
os.execvp("runc", ["runc", *arguments])
