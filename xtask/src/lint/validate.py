"""Reads a list of Kubernetes objects as JSON, and schemas of kinds that Kubernetes does not have; prints what is wrong."""

import json
import sys

import jsonschema
import kubernetes_validate

# What OpenShift 4.12 has, and the newest.
VERSIONS = ["1.25", "1.37"]

asked = json.load(sys.stdin)
for thing in asked["objects"]:
    name = f"{thing.get('kind')} {thing.get('metadata', {}).get('name')}"
    own = asked["schemas"].get(thing.get("kind"))
    if own is not None:
        for error in jsonschema.Draft202012Validator(own).iter_errors(thing):
            print(f"{name}: {error.json_path}: {error.message}")
        continue
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(thing, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            path = ".".join(str(part) for part in error.path)
            print(f"{name}: Kubernetes {version}: {path}: {error.message}")
        except Exception as error:  # No schema for the kind or the version.
            print(f"{name}: Kubernetes {version}: {type(error).__name__}: {error}")
