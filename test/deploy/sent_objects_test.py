#!/usr/bin/env python3
"""What nvshare's agents send to the API server, against strict schemas: Kubernetes refuses an unknown field, or drops it without a word.

  sent_objects_test.py PROGRAM[=GTEST_FILTER]...

Runs these unit tests, whose stand-in API server writes down what it is sent (NVSHARE_TEST_SENT). The schemas hold what resource.k8s.io/v1 and
v1 of Kubernetes 1.34 to 1.36 allow in the objects that we send: types, limits and names, and no field besides.
"""
import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import jsonschema

STRING = {"type": "string"}
TEXT = {"type": "string", "minLength": 1}
INTEGER = {"type": "integer", "minimum": 0}
QUANTITY = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|Ti)?$"}
LABEL = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}
NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"}
UID = {"type": "string", "pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"}
TIME = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"}
QUALIFIED = {"pattern": r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z_][A-Za-z0-9_]{0,31}$"}
SEMVER = {"type": "string", "maxLength": 64, "pattern": r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$"}


def strict(required=(), **properties):
    properties = {key.rstrip("_"): value for key, value in properties.items()}
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def one_of(**properties):
    return {**strict((), **properties), "minProperties": 1, "maxProperties": 1}


def listed(item, most, least=0):
    return {"type": "array", "items": item, "maxItems": most, "minItems": least}


CAPACITY = strict(
    ["value"], value=QUANTITY,
    requestPolicy=strict(["default"], default=QUANTITY, validRange=strict(["min"], min=QUANTITY, max=QUANTITY, step=QUANTITY)),
)
DEVICE = strict(
    ["name"], name=LABEL, allowMultipleAllocations={"type": "boolean"},
    attributes={
        "type": "object", "propertyNames": QUALIFIED, "maxProperties": 30,
        "additionalProperties": one_of(string={"type": "string", "maxLength": 64}, int={"type": "integer"}, bool={"type": "boolean"}, version=SEMVER),
    },
    capacity={"type": "object", "propertyNames": QUALIFIED, "additionalProperties": CAPACITY},
    taints=listed(strict(
        ["key", "effect"], key={"type": "string", "pattern": "^([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$"},
        value={"type": "string", "pattern": "^([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$"},
        effect={"enum": ["NoSchedule", "NoExecute"]}, timeAdded=TIME), 4),
)
OWNER = strict(["apiVersion", "kind", "name", "uid"], apiVersion=TEXT, kind=TEXT, name=NAME, uid=UID, controller={"type": "boolean"})
SLICE = strict(
    ["apiVersion", "kind", "metadata", "spec"], apiVersion={"const": "resource.k8s.io/v1"}, kind={"const": "ResourceSlice"},
    metadata=strict((), name=NAME, generateName=TEXT, uid=UID, resourceVersion=TEXT, ownerReferences=listed(OWNER, 1, 1)),
    spec=strict(
        ["driver", "nodeName", "pool"], driver={**NAME, "maxLength": 63}, nodeName=NAME,
        pool=strict(["name", "generation", "resourceSliceCount"], name=NAME, generation=INTEGER, resourceSliceCount={"type": "integer", "minimum": 1}),
        devices=listed(DEVICE, 64)),
)
CONDITION = strict(
    ["type", "status", "reason", "message", "lastTransitionTime"], type=TEXT, status={"enum": ["True", "False", "Unknown"]},
    reason={"type": "string", "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"}, message={"type": "string", "maxLength": 32768},
    lastTransitionTime=TIME,
)
CLAIM_STATUS = strict(
    ["apiVersion", "kind", "metadata", "status"], apiVersion={"const": "resource.k8s.io/v1"}, kind={"const": "ResourceClaim"},
    metadata=strict(["namespace", "name", "uid"], namespace=LABEL, name=NAME, uid=UID),
    status=strict(["devices"], devices=listed(strict(
        ["driver", "pool", "device", "conditions"], driver=NAME, pool=NAME, device=LABEL, shareID=UID, conditions=listed(CONDITION, 8)), 32, 1)),
)
DELETE = strict(
    ["preconditions"], apiVersion={"const": "v1"}, kind={"const": "DeleteOptions"},
    preconditions=strict(["uid", "resourceVersion"], uid=UID, resourceVersion=TEXT),
)
EVENT = strict(
    ["apiVersion", "kind", "metadata", "involvedObject", "reason", "message", "type"], apiVersion={"const": "v1"}, kind={"const": "Event"},
    metadata=strict(["generateName", "namespace"], generateName=TEXT, namespace=LABEL),
    involvedObject=strict(["kind", "namespace", "name"], apiVersion=STRING, kind=TEXT, namespace=LABEL, name=NAME, uid=STRING),
    reason={"type": "string", "minLength": 1, "maxLength": 128}, message={"type": "string", "maxLength": 1024}, type={"enum": ["Normal", "Warning"]},
    source=strict((), component=STRING, host=STRING), reportingComponent=TEXT, reportingInstance={"type": "string", "maxLength": 128},
    firstTimestamp=TIME, lastTimestamp=TIME, count={"type": "integer", "minimum": 1},
)
# By method and path; what is sent elsewhere is a failure.
SCHEMAS = [
    ("slice", r"(POST|PUT) /apis/resource\.k8s\.io/v1/resourceslices", SLICE),
    ("removal", r"DELETE /apis/resource\.k8s\.io/v1/resourceslices/", DELETE),
    ("claim status", r"PATCH /apis/resource\.k8s\.io/v1/namespaces/[^/]+/resourceclaims/[^/]+/status\?", CLAIM_STATUS),
    ("event", r"POST /api/v1/namespaces/[^/]+/events$", EVENT),
]


def problems_of(method, target, body):
    """The name of what was sent, and what is wrong with it."""
    for name, pattern, schema in SCHEMAS:
        if re.match(pattern, f"{method} {target}"):
            errors = jsonschema.Draft7Validator(schema).iter_errors(json.loads(body))
            return name, [f"{'/'.join(map(str, error.absolute_path))}: {error.message[:300]}" for error in errors]
    return None, [f"{method} {target}: nothing is known to be sent there"]


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for _, _, schema in SCHEMAS:
        jsonschema.Draft7Validator.check_schema(schema)
    seen, wrong, sent = collections.Counter(), [], {}
    with tempfile.TemporaryDirectory(prefix="nvs-sent-") as folder:
        file = pathlib.Path(folder) / "sent"
        for argument in sys.argv[1:]:
            program, _, gtest_filter = argument.partition("=")
            command = [program] + ([f"--gtest_filter={gtest_filter}"] if gtest_filter else [])
            done = subprocess.run(command, env={**os.environ, "NVSHARE_TEST_SENT": str(file)}, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                sys.exit(f"{program} failed:\n{done.stdout[-3000:]}")
        for line in file.read_text(encoding="utf-8").splitlines():
            method, target, body = line.split(" ", 2)
            name, problems = problems_of(method, target, body)
            seen[name] += 1
            sent.setdefault(name, (method, target, json.loads(body)))
            wrong += [f"{name}: {problem}\n    in {body[:400]}" for problem in problems]
    if wrong:
        sys.exit("\n".join(sorted(set(wrong))[:20]))
    missing = [name for name, _, _ in SCHEMAS if not seen[name]]
    if missing:
        sys.exit(f"not seen, so not checked: {', '.join(missing)}")
    # The schemas can say no.
    for name, (method, target, body) in sent.items():
        if not problems_of(method, target, json.dumps({**body, "misspelt": 1}))[1]:
            sys.exit(f"a misspelt field of a {name} was not seen")
    print("; ".join(f"{name}: {count}" for name, count in sorted(seen.items())))


if __name__ == "__main__":
    main()
