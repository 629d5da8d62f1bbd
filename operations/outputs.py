"""`make outputs`: outputs.json from the deployed stacks, as `cdk deploy --all` would write it.

The CLI rewrites the file with the stacks that it just deployed, and whoever clones the repository has none.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from charts.outputs import PlatformOutputs
from config.names import STACKS
from operations.aws import AWS_ERRORS, HEALTHY, find_stack, platform_on_aws, said, session_of
from trainer.config import ConfigError

OUTPUTS = Path("outputs.json")

Outputs = dict[str, dict[str, str]]


def main() -> int:
    """Entry of `make outputs`."""
    parser = argparse.ArgumentParser(prog="python -m operations.outputs", description=__doc__, allow_abbrev=False)
    parser.add_argument("--config", help="platform file")
    try:
        _, config = platform_on_aws(parser.parse_args().config)
        outputs = deployed_outputs(session_of(config).client("cloudformation"), config.name)
        OUTPUTS.write_text(json.dumps(outputs, indent=2) + "\n", encoding="utf-8")
        PlatformOutputs.load(OUTPUTS, config.name)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except AWS_ERRORS as error:
        print(f"AWS: {said(error)}; nothing was written", file=sys.stderr)
        return 2
    print(f"{OUTPUTS}: outputs of {', '.join(outputs)}")
    return 0


def deployed_outputs(cloudformation: Any, platform: str) -> Outputs:
    """Stack to its outputs, of every stack of a platform that has some.

    Raises:
        ConfigError: a stack is missing, or its deployment failed or has not ended.
    """
    outputs: Outputs = {}
    for name in (f"{platform}-{stack}" for stack in STACKS):
        stack = find_stack(cloudformation, name)
        if stack is None or stack["StackStatus"] not in HEALTHY:
            state = "not deployed" if stack is None else stack["StackStatus"]
            raise ConfigError(f"{name}: must be deployed, got {state}; run `npx cdk deploy --all -c config=PATH`")
        if found := stack.get("Outputs"):
            outputs[name] = {each["OutputKey"]: each["OutputValue"] for each in found}
    return outputs


if __name__ == "__main__":
    sys.exit(main())
