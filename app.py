"""The CDK app: the stacks of one platform, wired. `cdk synth -c config=PATH`, or `python app.py --config PATH`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import aws_cdk as cdk

from config.loader import chosen_path, load_config
from config.names import PLATFORM_TAG
from config.platform import PlatformConfig
from stacks.cluster import ClusterStack
from stacks.network import NetworkStack
from stacks.node_groups import NodeGroupsStack
from stacks.registry import RegistryStack
from stacks.rules import violations
from stacks.storage import StorageStack
from trainer.config import ConfigError


def new_app(outdir: str | None = None) -> cdk.App:
    """An app with this repository's feature flags, whoever starts it; the CLI passes the same ones."""
    flags = json.loads((Path(__file__).parent / "cdk.json").read_text(encoding="utf-8"))["context"]
    return cdk.App(context=flags, outdir=outdir, analytics_reporting=False)


def build_app(app: cdk.App, config: PlatformConfig) -> None:
    """Every stack of the platform, each with the part of the config that it owns."""
    env = cdk.Environment(account=config.account, region=config.region)
    network = NetworkStack(
        app,
        f"{config.name}-network",
        config=config.network,
        zones=config.availability_zones,
        gpu_zone=config.gpu_zone,
        env=env,
    )
    cluster = ClusterStack(
        app,
        f"{config.name}-cluster",
        platform=config.name,
        kubernetes_version=config.kubernetes_version,
        config=config.cluster,
        subnet_ids=list(network.private_subnets.values()),
        env=env,
    )
    storage = StorageStack(
        app,
        f"{config.name}-storage",
        platform=config.name,
        config=config.storage,
        teardown=config.teardown,
        vpc=network.vpc,
        subnet_id=network.private_subnets[config.gpu_zone],
        client_security_group=network.node_security_group.security_group_id,
        env=env,
    )
    RegistryStack(app, f"{config.name}-registry", platform=config.name, config=config.registry, env=env)
    node_groups = NodeGroupsStack(
        app,
        f"{config.name}-node-groups",
        platform=config.name,
        kubernetes_version=config.kubernetes_version,
        groups=config.node_groups,
        cluster_name=cluster.name,
        cluster_security_group=cluster.security_group_id,
        efa_security_group=network.node_security_group.security_group_id,
        subnet_id=network.private_subnets[config.gpu_zone],
        env=env,
    )
    # Nodes mount the file system, so they come after it and go before it, though neither names the other.
    node_groups.add_stack_dependency(storage)
    for key, value in {**config.tags, PLATFORM_TAG: config.name}.items():
        cdk.Tags.of(app).add(key, value)


def main() -> int:
    """Synthesize the platform that the user chose into the folder that the CLI names, or else `cdk.out`.

    Ends with 2 for a mistake in the config, and with 1 for templates that break a rule.
    """
    parser = argparse.ArgumentParser(prog="python app.py", description=__doc__, allow_abbrev=False)
    parser.add_argument("--config", help="platform file")
    flag = parser.parse_args().config
    app = new_app(outdir=os.environ.get("CDK_OUTDIR", "cdk.out"))
    try:
        path = chosen_path(flag=flag, context=app.node.try_get_context("config"))
        config = load_config(path).config
        if not isinstance(config, PlatformConfig):
            raise ConfigError(
                f"{path}: {config.name} is this machine and has no stacks; run `make synth` for its charts"
            )
        build_app(app, config)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    assembly = app.synth()
    templates = {stack.stack_name: json.loads(Path(stack.template_full_path).read_text()) for stack in assembly.stacks}
    if broken := violations(templates):
        # Without its manifest, nobody can deploy what was written.
        (Path(assembly.directory) / "manifest.json").unlink()
        print("\n".join(broken), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
