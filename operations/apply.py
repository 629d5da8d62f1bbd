"""`make apply`: the manifests onto their cluster, each file when the one before it works. Jobs wait for `make submit`.

`kubectl apply --filename dist/` cannot do it: it looks up every kind before it creates the first, and the operator's
webhook refuses what comes before the operator is there.
"""

from __future__ import annotations

import argparse
import sys

from config.loader import chosen_path, load_config
from operations.kubectl import check_cluster, kubectl, platform_files, read_objects
from trainer.config import ConfigError

DEFINED_WITHIN = "60s"
AVAILABLE_WITHIN = "300s"


def main() -> int:
    """Entry of `make apply`."""
    parser = argparse.ArgumentParser(prog="python -m operations.apply", description=__doc__, allow_abbrev=False)
    parser.add_argument("--config", help="platform file")
    try:
        config = load_config(chosen_path(flag=parser.parse_args().config)).config
        files = platform_files(config)
        check_cluster(config)
        for path in files:
            print(path.name, flush=True)
            kubectl("apply", "--server-side", f"--filename={path}")
            for found in read_objects(path):
                name = found["metadata"]["name"]
                if found["kind"] == "CustomResourceDefinition":
                    kubectl("wait", "--for=condition=Established", f"--timeout={DEFINED_WITHIN}", f"crd/{name}")
                elif found["kind"] == "Deployment":
                    namespace = found["metadata"]["namespace"]
                    print(f"  waiting for {name}", flush=True)
                    kubectl(
                        "rollout",
                        "status",
                        f"--timeout={AVAILABLE_WITHIN}",
                        f"--namespace={namespace}",
                        f"deployment/{name}",
                    )
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{config.name} is ready; start a job with make submit JOB=NAME")
    return 0


if __name__ == "__main__":
    sys.exit(main())
