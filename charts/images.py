"""Where nodes find the images that others publish. Each image's own name stands atop the chart that runs it."""

from __future__ import annotations

# EKS keeps its images in every region, in some of them under an account of the region's own:
# https://docs.aws.amazon.com/eks/latest/userguide/add-ons-images.html
EKS_ACCOUNT = "602401143452"
EKS_ACCOUNTS = {
    "af-south-1": "877085696533",
    "ap-east-1": "800184023465",
    "ap-east-2": "533267051163",
    "ap-south-2": "900889452093",
    "ap-southeast-3": "296578399912",
    "ap-southeast-4": "491585149902",
    "ap-southeast-5": "151610086707",
    "ap-southeast-7": "121268973566",
    "ca-west-1": "761377655185",
    "cn-north-1": "918309763551",
    "cn-northwest-1": "961992271922",
    "eu-central-2": "900612956339",
    "eu-south-1": "590381155156",
    "eu-south-2": "455263428931",
    "il-central-1": "066635153087",
    "me-central-1": "759879836304",
    "me-south-1": "558608220178",
    "mx-central-1": "730335286997",
    "us-gov-east-1": "151742754352",
    "us-gov-west-1": "013241004608",
}


def eks_registry(region: str) -> str:
    """EKS's registry of a region. Nodes reach it as they reach their own, by ECR's endpoint in the VPC."""
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"{EKS_ACCOUNTS.get(region, EKS_ACCOUNT)}.dkr.ecr.{region}.{suffix}"


def mirrored(image: str, mirror: str | None) -> str:
    """The image as it is named in the mirror: under its full name, with the registry that it comes from."""
    return image if mirror is None else f"{mirror}/{image}"
