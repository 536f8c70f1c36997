#!/usr/bin/env python3
"""Chart, rendered YAML, examples and image: against strict schemas, and against what the programs accept.

  deploy_test.py --scheduler PROGRAM [--device-plugin PROGRAM] [--dra-driver PROGRAM] [--library FILE] [--stand-in FOLDER] [unittest arguments]

A schema here lists every field that we use: Kubernetes ignores a misspelt field or refuses it only at install time, this test refuses it now.
"""
import argparse
import fcntl
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import jsonschema
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PROGRAMS = argparse.Namespace()

spec = importlib.util.spec_from_file_location("render_chart", ROOT / "tools/render-chart.py")
render_chart = importlib.util.module_from_spec(spec)
spec.loader.exec_module(render_chart)


class StrictLoader(yaml.SafeLoader):
    """Refuses a key that is there twice."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if len(keys) != len(set(keys)):
            raise yaml.constructor.ConstructorError(None, None, f"a key is there twice: {keys}", node.start_mark)
        return super().construct_mapping(node, deep)


def documents(text):
    return [document for document in yaml.load_all(text, StrictLoader) if document is not None]


# ---- schemas: fields by their Kubernetes names; nothing else may be there ----

STRING = {"type": "string"}
INTEGER = {"type": "integer"}
BOOLEAN = {"type": "boolean"}
STRINGS = {"type": "object", "additionalProperties": STRING}
NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
QUANTITY = {"anyOf": [INTEGER, {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi)?$"}]}


def strict(required=(), **properties):
    properties = {key.rstrip("_"): value for key, value in properties.items()}
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def listed(item):
    return {"type": "array", "items": item, "minItems": 1}


LABELS = {
    "type": "object",
    "propertyNames": {"pattern": r"^([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$"},
    "additionalProperties": {"type": "string", "pattern": r"^([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$"},
}
META = strict(["name"], name=NAME, namespace=NAME, labels=LABELS, annotations=STRINGS)
ENV = strict(
    ["name"],
    name={"type": "string", "pattern": "^[A-Z][A-Z0-9_]*$"},
    value=STRING,
    valueFrom=strict(["fieldRef"], fieldRef=strict(["fieldPath"], fieldPath={"enum": ["spec.nodeName", "metadata.name"]})),
)
ENV["oneOf"] = [{"required": ["value"]}, {"required": ["valueFrom"]}]
MOUNT = strict(["name", "mountPath"], name=NAME, mountPath={"type": "string", "pattern": "^/"}, readOnly=BOOLEAN)
CONTAINER = strict(
    ["name", "image", "resources"],
    name=NAME,
    image=STRING,
    imagePullPolicy={"enum": ["Always", "IfNotPresent", "Never"]},
    command=listed(STRING),
    terminationMessagePolicy={"enum": ["File", "FallbackToLogsOnError"]},
    livenessProbe=strict(
        ["exec"],
        exec_=strict(["command"], command=listed(STRING)),
        initialDelaySeconds=INTEGER,
        periodSeconds=INTEGER,
        timeoutSeconds=INTEGER,
        failureThreshold=INTEGER,
    ),
    startupProbe=strict(
        ["exec"],
        exec_=strict(["command"], command=listed(STRING)),
        initialDelaySeconds=INTEGER,
        periodSeconds=INTEGER,
        timeoutSeconds=INTEGER,
        failureThreshold=INTEGER,
    ),
    env=listed(ENV),
    ports=listed(strict(["name", "containerPort"], name={"type": "string", "maxLength": 15}, containerPort=PORT)),
    resources=strict(
        requests={"type": "object", "additionalProperties": QUANTITY}, limits={"type": "object", "additionalProperties": QUANTITY},
        claims=listed(strict(["name"], name=NAME, request=NAME)),
    ),
    securityContext=strict(
        runAsUser=INTEGER,
        allowPrivilegeEscalation={"const": False},
        readOnlyRootFilesystem={"const": True},
        capabilities=strict(["drop"], drop={"const": ["ALL"]}),
        seccompProfile=strict(["type"], type={"const": "RuntimeDefault"}),
    ),
    volumeMounts=listed(MOUNT),
)
VOLUME = strict(
    ["name"],
    name=NAME,
    hostPath=strict(["path", "type"], path={"type": "string", "pattern": "^/"}, type={"enum": ["Directory", "DirectoryOrCreate"]}),
    projected=strict(
        ["sources"],
        sources=listed(
            strict(
                serviceAccountToken=strict(["path"], path=STRING, expirationSeconds={"type": "integer", "minimum": 600}),
                configMap=strict(["name", "items"], name=NAME, items=listed(strict(["key", "path"], key=STRING, path=STRING))),
            )
        ),
    ),
)
VOLUME["oneOf"] = [{"required": ["hostPath"]}, {"required": ["projected"]}]
TOLERATION = strict(key=STRING, operator={"enum": ["Exists", "Equal"]}, value=STRING, effect=STRING)
POD = strict(
    ["containers"],
    serviceAccountName=NAME,
    automountServiceAccountToken=BOOLEAN,
    hostPID=BOOLEAN,
    priorityClassName=NAME,
    runtimeClassName=NAME,
    imagePullSecrets=listed(strict(["name"], name=NAME)),
    nodeSelector=LABELS,
    tolerations=listed(TOLERATION),
    affinity={"type": "object"},
    terminationGracePeriodSeconds=INTEGER,
    restartPolicy={"enum": ["Always", "OnFailure", "Never"]},
    containers=listed(CONTAINER),
    volumes=listed(VOLUME),
    resourceClaims=listed(strict(["name"], name=NAME, resourceClaimName=NAME, resourceClaimTemplateName=NAME)),
)
TEMPLATE = strict(["spec"], metadata=strict(labels=LABELS, annotations=STRINGS), spec=POD)
SELECTOR = strict(["matchLabels"], matchLabels=LABELS)


def kind(api_version, required=(), **fields):
    return strict(["apiVersion", "kind", "metadata", *required], apiVersion={"const": api_version}, kind=STRING, metadata=META, **fields)


SCHEMAS = {
    "Namespace": kind("v1"),
    "ServiceAccount": kind("v1"),
    "ConfigMap": kind("v1", data=STRINGS),
    "ClusterRole": kind(
        "rbac.authorization.k8s.io/v1",
        rules=listed(
            strict(["apiGroups", "resources", "verbs"], apiGroups=listed(STRING), resources=listed(STRING), verbs=listed(STRING),
                   resourceNames=listed(STRING))
        ),
    ),
    "ClusterRoleBinding": kind(
        "rbac.authorization.k8s.io/v1",
        ["roleRef", "subjects"],
        roleRef=strict(["apiGroup", "kind", "name"], apiGroup={"const": "rbac.authorization.k8s.io"}, kind={"const": "ClusterRole"}, name=NAME),
        subjects=listed(strict(["kind", "name", "namespace"], kind={"const": "ServiceAccount"}, name=NAME, namespace=NAME)),
    ),
    "DeviceClass": kind(
        "resource.k8s.io/v1",
        ["spec"],
        spec=strict(
            selectors=listed(strict(["cel"], cel=strict(["expression"], expression=STRING))),
            extendedResourceName={"type": "string", "pattern": "^[a-z0-9.-]+/[A-Za-z0-9._-]+$"},
            config=listed(strict(["opaque"], opaque=strict(["driver", "parameters"], driver=NAME, parameters={"type": "object"}))),
        ),
    ),
    "ResourceClaimTemplate": kind(
        "resource.k8s.io/v1",
        ["spec"],
        spec=strict(["spec"], spec=strict(["devices"], devices=strict(
            ["requests"],
            requests=listed(strict(["name", "exactly"], name=NAME, exactly=strict(
                ["deviceClassName"],
                deviceClassName=NAME,
                count={"type": "integer", "minimum": 1, "maximum": 32},
                capacity=strict(["requests"], requests={"type": "object", "additionalProperties": QUANTITY}),
            ))),
            config=listed(strict(["opaque"], requests=listed(NAME), opaque=strict(
                ["driver", "parameters"], driver=NAME, parameters={"type": "object"}
            ))),
        ))),
    ),
    "ValidatingAdmissionPolicy": kind(
        "admissionregistration.k8s.io/v1",
        ["spec"],
        spec=strict(
            ["matchConstraints", "validations"],
            failurePolicy={"enum": ["Fail", "Ignore"]},
            matchConstraints=strict(["resourceRules"], resourceRules=listed(strict(
                ["apiGroups", "apiVersions", "operations", "resources"],
                apiGroups=listed(STRING), apiVersions=listed(STRING), resources=listed(STRING),
                operations=listed({"enum": ["CREATE", "UPDATE", "DELETE"]}),
            ))),
            matchConditions=listed(strict(["name", "expression"], name=NAME, expression=STRING)),
            variables=listed(strict(["name", "expression"], name={"type": "string", "pattern": "^[A-Za-z_]+$"}, expression=STRING)),
            validations=listed(strict(["expression"], expression=STRING, message=STRING)),
        ),
    ),
    "ValidatingAdmissionPolicyBinding": kind(
        "admissionregistration.k8s.io/v1",
        ["spec"],
        spec=strict(["policyName", "validationActions"], policyName=NAME, validationActions={"const": ["Deny"]}),
    ),
    "DaemonSet": kind(
        "apps/v1",
        ["spec"],
        spec=strict(
            ["selector", "template"],
            selector=SELECTOR,
            updateStrategy=strict(type={"const": "RollingUpdate"}, rollingUpdate=strict(maxSurge=INTEGER, maxUnavailable=INTEGER)),
            minReadySeconds=INTEGER,
            template=TEMPLATE,
        ),
    ),
    "Deployment": kind("apps/v1", ["spec"], spec=strict(["selector", "template"], replicas=INTEGER, selector=SELECTOR, template=TEMPLATE)),
    "Job": kind("batch/v1", ["spec"], spec=strict(["template"], completions=INTEGER, parallelism=INTEGER, template=TEMPLATE)),
    "Pod": kind("v1", ["spec"], spec=POD),
    "Service": kind(
        "v1",
        ["spec"],
        spec=strict(
            ["selector", "ports"],
            clusterIP={"const": "None"},
            selector=LABELS,
            ports=listed(strict(["name", "port", "targetPort"], name=NAME, port=PORT, targetPort=STRING)),
        ),
    ),
    "NetworkPolicy": kind(
        "networking.k8s.io/v1",
        ["spec"],
        spec=strict(
            ["podSelector", "policyTypes"],
            podSelector=SELECTOR,
            policyTypes={"const": ["Ingress"]},
            ingress=listed(
                strict(
                    ["from", "ports"],
                    from_=listed(strict(namespaceSelector=strict(matchLabels=LABELS), podSelector=SELECTOR)),
                    ports=listed(strict(["port"], port={"type": ["string", "integer"]}, protocol={"const": "TCP"})),
                )
            ),
        ),
    ),
    "ServiceMonitor": kind(
        "monitoring.coreos.com/v1",
        ["spec"],
        spec=strict(
            ["selector", "endpoints"],
            selector=SELECTOR,
            namespaceSelector=strict(matchNames=listed(NAME)),
            endpoints=listed(
                strict(
                    ["port"],
                    port=STRING,
                    interval=STRING,
                    relabelings=listed(strict(sourceLabels=listed(STRING), targetLabel=STRING, replacement=STRING)),
                )
            ),
        ),
    ),
    # Of its groups promtool says more: test_the_charts_rules_and_dashboard_are_the_files.
    "PrometheusRule": kind("monitoring.coreos.com/v1", ["spec"], spec=strict(["groups"], groups={"type": "array", "minItems": 1})),
}


def pod_of(document):
    if document["kind"] == "Pod":
        return document["spec"]
    return document.get("spec", {}).get("template", {}).get("spec")


def variables_of(program):
    """Variables that a program reads, from the flags in its own help."""
    text = subprocess.run([program, "--help"], check=True, capture_output=True, text=True).stdout
    return {"NVSHARE_" + flag.upper().replace("-", "_") for flag in re.findall(r"^\s+--([a-z][a-z-]+)", text, re.M)} - {
        "NVSHARE_HELP", "NVSHARE_VERSION", "NVSHARE_CONFIG", "NVSHARE_WRITE_CDI"
    }


EVERY_VALUE = {
    "createNamespace": True,
    "runtimeClassName": "nvidia",
    "imagePullSecrets": [{"name": "registry"}],
    "podAnnotations": {"a/b": "c"},
    "podLabels": {"team": "ml"},
    "affinity": {"nodeAffinity": {}},
    "image": {"repository": "registry.example.com:5000/nvshare", "tag": "1.2.3", "digest": "sha256:" + "0123456789abcdef" * 4},
    "scheduler": {"env": {"NVSHARE_SWITCH_TIME_MODE": "fixed", "NVSHARE_LOG_LEVEL": "debug"}},
    "plugin": {"env": {"NVSHARE_HEALTH_INTERVAL": "10"}, "cdi": "with-nvidia", "runtimeConfig": "/etc/containerd", "defaultGpuMemory": "4Gi",
               "annotationsReserve": "on", "namespaceMaxima": "team-a:gpu-memory=16Gi,gpu-core=50;*:gpu-core=80"},
    "metrics": {"enabled": True, "host": "[::]", "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
                "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}}, "dashboard": {"enabled": True, "labels": {"grafana": "yes"}}},
}


def values_to_try():
    return yaml.load((DEPLOY / "try-without-gpu/values.yaml").read_text(encoding="utf-8"), StrictLoader)


class Deploy(unittest.TestCase):
    maxDiff = None

    def renderings(self):
        yield "defaults", documents(render_chart.render())
        yield "every value", documents(render_chart.render(EVERY_VALUE, "other", "gpus"))
        yield "little", documents(
            render_chart.render({"networkPolicy": {"enabled": False}, "rbac": {"create": False}, "serviceAccount": {"create": False, "name": "x"},
                                 "tolerations": [], "plugin": {"watchPods": False}})
        )
        yield "dra", documents(
            render_chart.render({"mode": "dra", "dra": {"env": {"NVSHARE_POD_PRIORITY_MAX": "10"}, "extendedResourceName": "nvshare.com/gpu"}})
        )

    def test_converted_manifests(self):
        """What `nvsharectl convert` wrote (its unit tests keep it): templates that Kubernetes takes, and pods that name them."""
        files = sorted((ROOT / "src/cli/convert/manifests").glob("*.converted.yaml"))
        self.assertGreater(len(files), 3)
        for file in files:
            found = []
            for document in documents(file.read_text(encoding="utf-8")):
                found += document["items"] if document["kind"] == "List" else [document]
            templates = {d["metadata"]["name"]: d for d in found if d["kind"] == "ResourceClaimTemplate"}
            for template in templates.values():
                jsonschema.validate(template, SCHEMAS["ResourceClaimTemplate"])
            used = set()
            for document in found:
                template = document.get("spec", {}).get("jobTemplate", document)
                pod = pod_of(template) or {} if "kind" in template else template["spec"]["template"]["spec"]
                offered = {}
                for claim in pod.get("resourceClaims", []):
                    name = claim["resourceClaimTemplateName"]
                    requests = templates[name]["spec"]["spec"]["devices"]["requests"] if name in templates else []
                    offered[claim["name"]] = {request["name"] for request in requests}
                    used.add(name)
                for container in pod.get("containers", []) + pod.get("initContainers", []):
                    for claim in container.get("resources", {}).get("claims", []):
                        self.assertIn(claim["name"], offered, file)
                        if "request" in claim:
                            self.assertIn(claim["request"], offered[claim["name"]], file)
            self.assertLessEqual(set(templates), used, file)

    def everything(self):
        for name, rendered in self.renderings():
            for document in rendered:
                yield f"chart with {name}", document
        for mode in ("devicePlugin", "dra"):
            for document in documents(render_chart.render(values_to_try() | {"mode": mode})):
                yield f"chart without a GPU, {mode}", document
        to_try = [DEPLOY / "try-without-gpu" / name for name in ("stand-in-driver.yaml", "two-pods.yaml", "two-pods-dra.yaml")]
        for file in [DEPLOY / "nvshare.yaml", *to_try, *sorted((DEPLOY / "examples").glob("*.yaml"))]:
            found = documents(file.read_text(encoding="utf-8"))
            self.assertTrue(found, file)
            for document in found:
                yield file.name, document

    def test_every_manifest_has_only_fields_that_exist(self):
        count = 0
        for where, document in self.everything():
            with self.subTest(where=where, kind=document.get("kind")):
                jsonschema.Draft7Validator(SCHEMAS[document["kind"]]).validate(document)
                count += 1
        self.assertGreater(count, 20)

    def test_references_within_a_manifest_meet(self):
        for name, rendered in self.renderings():
            by_kind = {document["kind"]: document for document in rendered}
            daemon_set = by_kind["DaemonSet"]
            pod = pod_of(daemon_set)
            labels = daemon_set["spec"]["template"]["metadata"]["labels"]
            selectors = [daemon_set["spec"]["selector"]["matchLabels"]]
            if "Service" in by_kind:
                selectors.append(by_kind["Service"]["spec"]["selector"])
                ports = {port["name"] for container in pod["containers"] for port in container.get("ports", [])}
                self.assertIn(by_kind["Service"]["spec"]["ports"][0]["targetPort"], ports)
            if "ServiceMonitor" in by_kind:
                self.assertLessEqual(
                    by_kind["ServiceMonitor"]["spec"]["selector"]["matchLabels"].items(), by_kind["Service"]["metadata"]["labels"].items()
                )
            for selector in selectors:
                self.assertLessEqual(selector.items(), labels.items(), name)
            if "NetworkPolicy" in by_kind:
                selectors.append(by_kind["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"])
            volumes = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in pod["volumes"]}
            used = set()
            for container in pod["containers"]:
                for mount in container["volumeMounts"]:
                    used.add(mount["name"])
                    # Paths go to the kubelet, to runtimes and to containers as the host knows them.
                    if volumes[mount["name"]] is not None:
                        self.assertEqual(mount["mountPath"], volumes[mount["name"]], name)
            self.assertEqual(used, set(volumes), name)
            if "ClusterRoleBinding" in by_kind:
                self.assertEqual(by_kind["ClusterRoleBinding"]["roleRef"]["name"], by_kind["ClusterRole"]["metadata"]["name"])
                self.assertEqual(by_kind["ClusterRoleBinding"]["subjects"][0]["name"], pod["serviceAccountName"])

    def test_rights_are_the_least_that_each_mode_needs(self):
        for name, rendered in self.renderings():
            rights = {
                (group, resource, verb)
                for document in rendered if document["kind"] == "ClusterRole"
                for rule in document["rules"]
                for group in rule["apiGroups"] for resource in rule["resources"] for verb in rule["verbs"]
            }
            allowed = {("", "pods", verb) for verb in ("get", "list", "watch")} | {("", "events", "create")}
            of_claims = allowed | {("resource.k8s.io", "resourceslices", verb) for verb in ("get", "list", "watch", "create", "update", "delete")} | {
                ("", "nodes", "get"), ("resource.k8s.io", "resourceclaims", "get"), ("resource.k8s.io", "resourceclaims/status", "patch"),
                ("resource.k8s.io", "resourceclaims/driver", "associated-node:patch"),
            }
            self.assertEqual(rights, {"little": set(), "dra": of_claims}.get(name, allowed), name)
            for document in rendered:
                for container in (pod_of(document) or {"containers": []})["containers"]:
                    self.assertFalse(container["securityContext"]["allowPrivilegeEscalation"])
                    self.assertEqual(container["securityContext"]["capabilities"], {"drop": ["ALL"]})

    def test_only_what_asks_the_api_server_has_its_token(self):
        for name, rendered in self.renderings():
            pod = next(pod_of(document) for document in rendered if document["kind"] == "DaemonSet")
            self.assertIs(pod["automountServiceAccountToken"], False, name)
            token = next((volume["name"] for volume in pod["volumes"] if "projected" in volume), None)
            having = {container["name"] for container in pod["containers"] if token in {mount["name"] for mount in container["volumeMounts"]}}
            # Without annotations and events nobody asks the API server.
            self.assertEqual(having, {"little": set(), "dra": {"dra-driver"}}.get(name, {"device-plugin"}), name)
            if name == "dra":
                continue
            variables = {entry["name"]: entry.get("value") for entry in pod["containers"][1]["env"]}
            self.assertEqual(variables["NVSHARE_API_SERVER"], "off" if name == "little" else "auto", name)

    def test_a_new_plugin_is_there_before_the_old_one_goes(self):
        for mode, program in (("devicePlugin", "/usr/bin/nvshare-device-plugin"), ("dra", "/usr/bin/nvshare-dra-driver")):
            with self.subTest(mode=mode):
                daemon_set = next(document for document in documents(render_chart.render({"mode": mode})) if document["kind"] == "DaemonSet")
                self.assertEqual(daemon_set["spec"]["updateStrategy"]["rollingUpdate"], {"maxSurge": 1, "maxUnavailable": 0})
                scheduler, plugin = pod_of(daemon_set)["containers"]
                # Two at a time: each has sockets of its own at the kubelet, and the second scheduler waits.
                names = {entry["name"]: entry for entry in plugin["env"]}
                self.assertEqual(names["NVSHARE_INSTANCE"]["valueFrom"]["fieldRef"]["fieldPath"], "metadata.name")
                patience = {entry["name"]: entry for entry in scheduler["env"]}["NVSHARE_TAKE_OVER_PATIENCE"]
                self.assertGreater(int(patience["value"]), pod_of(daemon_set)["terminationGracePeriodSeconds"])
                self.assertEqual(plugin["startupProbe"]["exec"]["command"][:2], [program, "--probe"])

    def test_set_takes_what_helm_takes(self):
        for text, value in (
            ("plugin.cdi=on", "on"), ("plugin.cdi=off", "off"), ("plugin.oversubscription=1.5", "1.5"), ("plugin.virtualDevices=7", 7),
            ("metrics.enabled=true", True), ("image.tag=1e3", "1e3"), ("image.tag=007", "007"), ("image.tag=", ""),
        ):
            with self.subTest(text=text):
                ((_, inner),) = render_chart.value_of(text).items()
                ((_, got),) = inner.items()
                self.assertEqual(got, value)
                self.assertIs(type(got), type(value))
        self.assertEqual(render_chart.text_value_of("image.tag=1"), {"image": {"tag": "1"}})

    def test_files_of_values_go_over_each_other_as_with_helm(self):
        script = [sys.executable, ROOT / "tools/render-chart.py"]
        with tempfile.TemporaryDirectory() as folder:
            first, second = pathlib.Path(folder, "first.yaml"), pathlib.Path(folder, "second.yaml")
            first.write_text("mode: dra\nplugin: {cdi: on, oversubscription: '3'}\n", encoding="utf-8")
            second.write_text("plugin: {oversubscription: '2'}\nimage: {tag: second}\n", encoding="utf-8")
            # YAML 1.1, as helm's: a bare `on` is true, which no value takes.
            wrong = subprocess.run([*script, "-f", first], capture_output=True, text=True, check=False)
            self.assertIn("plugin/cdi", wrong.stderr)
            first.write_text("mode: dra\nplugin: {oversubscription: '3'}\n", encoding="utf-8")
            done = subprocess.run([*script, "--values", first, "-f", second, "--set", "image.tag=set"], capture_output=True, text=True, check=True)
            rendered = documents(done.stdout)
            self.assertIn("DeviceClass", {document["kind"] for document in rendered})
            driver = pod_of(next(d for d in rendered if d["kind"] == "DaemonSet"))["containers"][1]
            self.assertTrue(driver["image"].endswith(":set"), driver["image"])
            self.assertIn({"name": "NVSHARE_GPU_MEMORY_OVERSUB_RATIO", "value": "2"}, driver["env"])
            for text, part in (("- 1\n", "no mapping"), ("a: [\n", "second.yaml"), ("mod: dra\n", "'mod' was unexpected")):
                second.write_text(text, encoding="utf-8")
                wrong = subprocess.run([*script, "-f", second], capture_output=True, text=True, check=False)
                self.assertNotEqual(wrong.returncode, 0)
                self.assertIn(part, wrong.stderr)
            wrong = subprocess.run([*script, "-f", pathlib.Path(folder, "missing.yaml")], capture_output=True, text=True, check=False)
            self.assertIn("missing.yaml", wrong.stderr)

    def test_the_runtimes_configuration_is_mounted_where_the_values_say_so(self):
        for mode in ("devicePlugin", "dra"):
            with self.subTest(mode=mode):
                pod = pod_of(next(d for d in documents(render_chart.render({"mode": mode, "plugin": {"runtimeConfig": "/etc/containerd"}})) if d["kind"] == "DaemonSet"))
                program = pod["containers"][1]
                self.assertIn({"name": "NVSHARE_RUNTIME_CONFIG", "value": "/etc/containerd"}, program["env"])
                self.assertIn({"name": "runtime-config", "mountPath": "/etc/containerd", "readOnly": True}, program["volumeMounts"])
                self.assertIn({"name": "runtime-config", "hostPath": {"path": "/etc/containerd", "type": "Directory"}}, pod["volumes"])
                plain = pod_of(next(d for d in documents(render_chart.render({"mode": mode})) if d["kind"] == "DaemonSet"))
                self.assertNotIn("runtime-config", {volume["name"] for volume in plain["volumes"]})

    def test_nobody_connects_to_the_pods_but_to_metrics_that_are_on(self):
        policies = {name: [d for d in rendered if d["kind"] == "NetworkPolicy"] for name, rendered in self.renderings()}
        (default,) = policies["defaults"]
        self.assertNotIn("ingress", default["spec"], "metrics are off")
        (every,) = policies["every value"]
        self.assertEqual(every["spec"]["ingress"][0]["ports"], [{"port": "metrics", "protocol": "TCP"}])
        self.assertEqual(policies["little"], [])

    def test_an_image_can_be_pinned(self):
        rendered = dict(self.renderings())["every value"]
        pod = next(pod_of(document) for document in rendered if document["kind"] == "DaemonSet")
        for container in pod["containers"]:
            self.assertEqual(container["image"], "registry.example.com:5000/nvshare@" + EVERY_VALUE["image"]["digest"])

    def test_only_labelled_nodes_are_served(self):
        for _, rendered in self.renderings():
            pod = next(pod_of(document) for document in rendered if document["kind"] == "DaemonSet")
            self.assertEqual(pod["nodeSelector"], {"nvshare.com/enabled": "true"})

    def test_variables_are_those_that_the_programs_read_and_values_are_accepted(self):
        programs = {"scheduler": PROGRAMS.scheduler, "device-plugin": PROGRAMS.device_plugin, "dra-driver": PROGRAMS.dra_driver}
        checked = 0
        for name, rendered in self.renderings():
            pod = next(pod_of(document) for document in rendered if document["kind"] == "DaemonSet")
            for container in pod["containers"]:
                program = programs[container["name"]]
                if program is None:  # a build without gRPC has no device plugin
                    continue
                self.assertEqual(container["command"], [f"/usr/bin/{pathlib.Path(program).name}"])
                known = variables_of(program)
                self.assertIn("NVSHARE_RUNTIME_DIR", known)
                environment = {entry["name"]: entry.get("value", "node-1") for entry in container["env"]}
                self.assertEqual(len(environment), len(container["env"]), "a variable is there twice")
                ours = {variable for variable in environment if variable.startswith("NVSHARE_")}
                self.assertLessEqual(ours, known, name)
                # A wrong flag is refused last: if a variable's value were not accepted, the program would name the variable.
                with tempfile.TemporaryDirectory() as folder:
                    wrong = subprocess.run(
                        [program, "--log-level", "wrong"], env=environment, capture_output=True, text=True, cwd=folder, timeout=60, check=False
                    )
                self.assertEqual(wrong.returncode, 2, wrong.stderr)
                self.assertIn("--log-level", wrong.stderr)
                checked += 1
        self.assertGreaterEqual(checked, 3)

    def test_a_nodes_driver_writes_its_own_slices_only(self):
        rendered = {document["kind"]: document for document in dict(self.renderings())["dra"]}
        policy, binding = rendered["ValidatingAdmissionPolicy"]["spec"], rendered["ValidatingAdmissionPolicyBinding"]["spec"]
        self.assertEqual(binding["policyName"], rendered["ValidatingAdmissionPolicy"]["metadata"]["name"])
        # A policy for another account holds nobody back, and nobody notices.
        account = f'system:serviceaccount:{rendered["ServiceAccount"]["metadata"]["namespace"]}:{pod_of(rendered["DaemonSet"])["serviceAccountName"]}'
        self.assertEqual(policy["matchConditions"][0]["expression"], f'request.userInfo.username == "{account}"')
        self.assertEqual(policy["matchConstraints"]["resourceRules"][0]["resources"], ["resourceslices"])

    def test_the_driver_offers_what_the_class_selects(self):
        rendered = {document["kind"]: document for document in dict(self.renderings())["dra"]}
        name = re.search(r'kDriverName\[\] = "([^"]+)"', (ROOT / "src/kubernetes/dra/share_config.h").read_text(encoding="utf-8")).group(1)
        self.assertEqual(rendered["DeviceClass"]["spec"]["selectors"][0]["cel"]["expression"], f"device.driver == '{name}'")
        for document in documents((DEPLOY / "examples/dra-share.yaml").read_text(encoding="utf-8")):
            for request in document["spec"].get("spec", {}).get("devices", {}).get("requests", []):
                self.assertEqual(request["exactly"]["deviceClassName"], rendered["DeviceClass"]["metadata"]["name"])
                self.assertLessEqual(set(request["exactly"]["capacity"]["requests"]), {"memory", "cores"})
        example = documents((DEPLOY / "examples/dra-class.yaml").read_text(encoding="utf-8"))[0]["spec"]
        self.assertIn(f'"{name}"', example["selectors"][0]["cel"]["expression"])
        self.assertEqual(example["config"][0]["opaque"]["driver"], name)
        fields = re.findall(r'if \(name == "(\w+)"\) return take_', (ROOT / "src/kubernetes/dra/share_config.cc").read_text(encoding="utf-8"))
        self.assertEqual(set(example["config"][0]["opaque"]["parameters"]) - {"apiVersion", "kind"}, set(fields), "it shows every field")

    def test_the_driver_has_a_probe_that_it_accepts(self):
        if PROGRAMS.dra_driver is None:
            self.skipTest("nvshare-dra-driver is not built here")
        pod = next(pod_of(document) for document in dict(self.renderings())["dra"] if document["kind"] == "DaemonSet")
        driver = pod["containers"][1]
        command = driver["livenessProbe"]["exec"]["command"]
        self.assertEqual(command[:2], [driver["command"][0], "--probe"])
        environment = {entry["name"]: entry.get("value", "node-1") for entry in driver["env"]}
        with tempfile.TemporaryDirectory() as folder:
            environment["NVSHARE_REGISTRY_DIR"] = folder
            result = subprocess.run([PROGRAMS.dra_driver, *command[1:]], env=environment, capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("gpu.nvshare.com-node-1-reg.sock does not answer", result.stderr, "nobody serves there")

    def test_both_programs_have_a_probe_that_they_accept(self):
        pod = next(pod_of(document) for document in documents(render_chart.render()) if document["kind"] == "DaemonSet")
        for container in pod["containers"]:
            probe = container["livenessProbe"]
            command = probe["exec"]["command"]
            if container["name"] == "scheduler":
                self.assertEqual(command[0], "/usr/bin/nvsharectl")  # metrics and scheduler tests run it
                continue
            self.assertEqual(command[:2], [container["command"][0], "--probe"])
            self.assertLess(float(command[2]), probe["timeoutSeconds"], "it is to say why before it is killed")
            if PROGRAMS.device_plugin is None:
                continue
            environment = {entry["name"]: entry.get("value", "node-1") for entry in container["env"]}
            with tempfile.TemporaryDirectory() as folder:
                environment["NVSHARE_KUBELET_DIR"] = folder
                result = subprocess.run([PROGRAMS.device_plugin, *command[1:]], env=environment, capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn("nvshare.com/gpu does not answer", result.stderr, "nobody serves there")

    def test_the_sockets_and_paths_are_the_same_for_both_programs(self):
        pod = next(pod_of(document) for document in documents(render_chart.render()) if document["kind"] == "DaemonSet")
        scheduler, plugin = ({entry["name"]: entry.get("value", "node-1") for entry in container["env"]} for container in pod["containers"])
        for variable in ("NVSHARE_RUNTIME_DIR", "NVSHARE_GPU_MEMORY_OVERSUB_RATIO"):
            self.assertEqual(scheduler[variable], plugin[variable])
        self.assertEqual(plugin["NVSHARE_POD_RESOURCES_SOCKET"], "/var/lib/kubelet/pod-resources/kubelet.sock")

    def test_examples_ask_for_resources_that_are_offered(self):
        asked = set()
        for file in sorted((DEPLOY / "examples").glob("*.yaml")):
            for document in documents(file.read_text(encoding="utf-8")):
                for container in (pod_of(document) or {"containers": []})["containers"]:
                    if "claims" in container["resources"]:
                        continue
                    limits = container["resources"]["limits"]
                    self.assertIn("nvshare.com/gpu", limits, file)
                    for name, amount in limits.items():
                        self.assertIsInstance(amount, int, f"{file}: {name} is counted in units")
                        asked.add(name)
        if PROGRAMS.device_plugin:
            offered = subprocess.run([PROGRAMS.device_plugin, "--help"], check=True, capture_output=True, text=True).stdout
            for name in asked:
                self.assertIn(f"({name})", offered.replace("\n", " "), name)
        self.assertEqual(asked, {"nvshare.com/gpu", "nvshare.com/gpu-memory"})

    def test_the_example_of_metrics_is_good_for_prometheus(self):
        config = documents((DEPLOY / "examples/metrics.yaml").read_text(encoding="utf-8"))[0]["data"]
        with tempfile.TemporaryDirectory() as folder:
            rules = pathlib.Path(folder, "rules.yml")
            rules.write_text(config["rules.yml"], encoding="utf-8")
            result = subprocess.run(["promtool", "check", "rules", rules], capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        # Debian's promtool knows nothing of Kubernetes, so it cannot check the other file.
        relabel = strict(["action"], source_labels=listed(STRING), regex=STRING, action=STRING, target_label=STRING)
        relabel["required"] = ["source_labels"]
        job = strict(
            ["job_name", "kubernetes_sd_configs"],
            job_name=STRING,
            kubernetes_sd_configs=listed(strict(["role"], role={"enum": ["pod"]}, namespaces=strict(names=listed(NAME)))),
            relabel_configs=listed(relabel),
        )
        (scrape,) = documents(config["prometheus.yml"])
        jsonschema.Draft7Validator(strict(["scrape_configs"], scrape_configs=listed(job))).validate(scrape)
        source = (ROOT / "src/scheduler/viewers/metrics.cc").read_text(encoding="utf-8")
        for name in re.findall(r"\bnvshare_[a-z_]+", config["rules.yml"]):
            prefix, suffix = re.match(r"(nvshare_(?:tenant|gpu)?)(_?.*)", name).groups()
            self.assertTrue(f'"{name}"' in source or f'"{suffix}"' in source, f"{name}: the scheduler has no such metric ({prefix})")

    def test_alerts_fire_when_they_should(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(DEPLOY / "monitoring/rules.yml", folder)
            shutil.copy(ROOT / "test/deploy/rules_test.yml", folder)
            for command in (["check", "rules", "rules.yml"], ["test", "rules", "rules_test.yml"]):
                result = subprocess.run(["promtool", *command], cwd=folder, capture_output=True, text=True, check=False)
                self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_the_charts_rules_and_dashboard_are_the_files(self):
        made = {document["kind"]: document for document in documents(render_chart.render(EVERY_VALUE)) if document["kind"] in
                ("PrometheusRule", "ConfigMap", "ServiceMonitor")}
        rules = yaml.safe_load((DEPLOY / "monitoring/rules.yml").read_text(encoding="utf-8"))
        self.assertEqual(made["PrometheusRule"]["spec"], rules)
        board = json.loads((DEPLOY / "monitoring/grafana-dashboard.json").read_text(encoding="utf-8"))
        self.assertEqual(json.loads(made["ConfigMap"]["data"]["nvshare.json"]), board)
        self.assertEqual(made["PrometheusRule"]["metadata"]["labels"]["release"], "prometheus")
        self.assertEqual(made["ConfigMap"]["metadata"]["labels"]["grafana"], "yes")
        # The alerts ask for a job; the operator would name it after the Service.
        jobs = set(re.findall(r'job="([^"]*)"', json.dumps(rules).replace('\\"', '"')))
        relabelings = made["ServiceMonitor"]["spec"]["endpoints"][0]["relabelings"]
        self.assertEqual({each["replacement"] for each in relabelings if each["targetLabel"] == "job"}, jobs)
        for values in ({}, {"metrics": {"enabled": True}}):
            kinds = {document["kind"] for document in documents(render_chart.render(values))}
            self.assertFalse(kinds & {"PrometheusRule", "ConfigMap"}, "only where they are asked for")

    def test_the_dashboard_is_one_that_grafana_imports(self):
        board = json.loads((DEPLOY / "monitoring/grafana-dashboard.json").read_text(encoding="utf-8"))
        variables = {variable["name"] for variable in board["templating"]["list"]}
        self.assertEqual(len({panel["id"] for panel in board["panels"]}), len(board["panels"]))
        rules = []
        for panel in board["panels"]:
            self.assertEqual(panel["datasource"]["uid"], "${datasource}")
            for target in panel["targets"]:
                self.assertLessEqual(set(re.findall(r"\$([a-z]+)", target["expr"])), variables, panel["title"])
                # As a rule promtool parses it; the variables of Grafana's own and of the dashboard stand for something.
                expression = target["expr"].replace("$__rate_interval", "5m").replace("$gpu", ".*").replace("$tenant", ".*")
                rules.append({"record": f"panel:{panel['id']}:{target['refId']}", "expr": expression})
        places = [panel["gridPos"] for panel in board["panels"]]
        cells = [(x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])]
        self.assertEqual(len(cells), len(set(cells)), "panels lie over each other")
        self.assertLess(max(x for x, _ in cells), 24)
        with tempfile.NamedTemporaryFile("w", suffix=".yml", encoding="utf-8") as file:
            yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}, file)
            file.flush()
            result = subprocess.run(["promtool", "check", "rules", file.name], capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_the_rendered_yaml_is_the_charts(self):
        wanted = render_chart.render({"createNamespace": True})
        self.assertEqual(
            (DEPLOY / "nvshare.yaml").read_text(encoding="utf-8"), wanted,
            "make it anew: tools/render-chart.py --set createNamespace=true --output deploy/nvshare.yaml",
        )

    def test_removing_the_package_leaves_what_a_scheduler_still_serves(self):
        with tempfile.TemporaryDirectory() as root:
            served = pathlib.Path(root, "run/nvshare")
            served.mkdir(parents=True)
            remove = lambda: subprocess.run(["sh", str(DEPLOY / "packaging/postrm"), "remove"], env={**os.environ, "DPKG_ROOT": root}, capture_output=True, text=True)
            with (served / "scheduler.lock").open("w") as lock:
                lock.write("4711\n")
                lock.flush()
                fcntl.flock(lock, fcntl.LOCK_EX)
                left = remove()
            self.assertEqual((left.returncode, served.exists()), (0, True), left.stderr)
            self.assertIn("'kill 4711' ends it", left.stderr)
            self.assertEqual((remove().returncode, served.exists()), (0, False))

    def test_large_numbers_are_written_out(self):
        text = render_chart.render({"scheduler": {"connectionsPerTenant": 1_000_000, "connectionsPerUser": 1_000_000}})
        self.assertEqual(text.count('value: "1000000"'), 2, "helm makes 1e+06 of them")

    @unittest.skipUnless(shutil.which("helm"), "helm is not installed")
    def test_helm_renders_the_same(self):
        command = ["helm", "template", "nvshare", str(DEPLOY / "helm/nvshare"), "--namespace", "nvshare"]
        for values in ({"createNamespace": True}, EVERY_VALUE, {"mode": "dra", "dra": {"extendedResourceName": "nvshare.com/gpu"}}):
            text = subprocess.run([*command, "--values", "-"], input=yaml.safe_dump(values), check=True, capture_output=True, text=True).stdout
            by_name = lambda document: (document["kind"], document["metadata"]["name"])
            self.assertEqual(
                sorted(documents(text), key=by_name), sorted(documents(render_chart.render(values)), key=by_name)
            )

    @unittest.skipUnless(shutil.which("systemd-analyze"), "systemd-analyze is not installed")
    def test_the_unit_has_no_right_that_it_does_not_need(self):
        unit = DEPLOY / "systemd/nvshare-scheduler.service"
        with tempfile.TemporaryDirectory() as folder:  # `verify` and `security` want the program to be there
            program = pathlib.Path(folder, "nvshare-scheduler")
            program.symlink_to("/bin/true")
            copy = pathlib.Path(folder, unit.name)
            copy.write_text(unit.read_text(encoding="utf-8").replace("/usr/bin/nvshare-scheduler", str(program)), encoding="utf-8")
            result = subprocess.run(
                ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=26", str(copy)],
                capture_output=True, text=True, check=False,
            )
        if "Unknown" in result.stderr or "unrecognized" in result.stderr:
            self.skipTest("this systemd-analyze knows no --offline")
        self.assertRegex(result.stdout, r"Overall exposure level for nvshare-scheduler.service: [0-2]\.[0-9]", result.stderr)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertNotIn("Unknown key", result.stderr)

    def test_wrong_values_are_refused_by_name(self):
        for values, name in (
            ({"image": {"digest": "sha256:abc"}}, "digest"),
            ({"plugin": {"cdi": "yes"}}, "cdi"),
            ({"scheduler": {"bypass": "ignore"}}, "bypass"),
            ({"scheduler": {"connectionsPerTenant": 0}}, "connectionsPerTenant"),
            ({"scheduler": {"connectionsPerUser": 1000001}}, "connectionsPerUser"),
            ({"scheduler": {"gpusPerUser": 1025}}, "gpusPerUser"),
            ({"plugin": {"watchPods": "no"}}, "watchPods"),
            ({"plugin": {"virtualDevices": 0}}, "virtualDevices"),
            ({"plugin": {"defaultGpuMemory": "some"}}, "defaultGpuMemory"),
            ({"plugin": {"annotationsReserve": "yes"}}, "annotationsReserve"),
            ({"plugin": {"namespaceMaxima": "team-a"}}, "namespaceMaxima"),
            ({"plugin": {"memoryUnit": "0Gi"}}, "memoryUnit"),
            ({"plugin": {"oversubscription": "0"}}, "oversubscription"),
            ({"scheduler": {"env": {"SWITCH_TIME": "1"}}}, "SWITCH_TIME"),
            ({"scheduler": {"env": {"NVSHARE_SWITCH_TIME_FIXED": 1000000}}}, "string"),
            ({"nodeSelector": {"nvshare.com/enabled": True}}, "string"),
            ({"metrics": {"host": "localhost"}}, "localhost"),
            ({"metrcs": {}}, "metrcs"),
            # These are of metrics that there are.
            ({"metrics": {"serviceMonitor": {"enabled": True}}}, "instance['metrics']['enabled']"),
            ({"metrics": {"prometheusRule": {"enabled": True}}}, "instance['metrics']['enabled']"),
            ({"metrics": {"dashboard": {"enabled": True}}}, "instance['metrics']['enabled']"),
            ({"image": {"repository": "https://registry.example/nvshare"}}, "repository"),
            ({"image": {"repository": "registry.example/nvshare:0.2"}}, "repository"),
            ({"image": {"tag": "0.2@sha256:12"}}, "tag"),
            ({"paths": {"runtime": "run"}}, "run"),
            # Else the pods' labels are not those that the DaemonSet selects.
            ({"podLabels": {"app.kubernetes.io/name": "mine"}}, "app.kubernetes.io/name"),
        ):
            with self.subTest(values=values):
                with self.assertRaises(jsonschema.ValidationError) as refused:
                    render_chart.render(values)
                self.assertIn(name, str(refused.exception))

    def test_refusals_say_what_is_accepted(self):
        for values, said in (
            ({"plugin": {"memoryUnit": "1GB"}}, "plugin/memoryUnit: '1GB' is refused; accepted: 1Mi to 1Ti, such as"),
            ({"plugin": {"namespaceMaxima": "team-a=16Gi"}}, "accepted: none, or NAMESPACE:gpu-memory=16Gi,gpu-core=50"),
            ({"plugin": {"cdi": True}}, "in quotes: YAML reads on and off as true and false"),
            ({"plugin": {"resources": {"limits": {"memory": "128MB"}}}}, "plugin/resources/limits/memory: '128MB' is refused; accepted: a quantity"),
            ({"scheduler": {"env": {"NVSHARE_SWITCH_TIME_FIXED": 30}}}, "accepted: a text, in quotes"),
            ({"priorityClassName": 1}, "priorityClassName: 1 is not of type 'string'; accepted: a text, in quotes (on the command line --set-string)"),
            ({"imagePullSecrets": ["pull"]}, "accepted: an object with the secret's name: {name: pull}"),
            ({"nodeselector": {}}, "('nodeselector' was unexpected); accepted: affinity, createNamespace, dra, "),
            ({"podLabels": {"app.kubernetes.io/name": "mine"}}, "podLabels: 'app.kubernetes.io/name' is refused; accepted: labels other than"),
            ({"nodeSelector": {"nvshare.com/enabled": None}}, "accepted: at least one label"),
        ):
            with self.subTest(values=values):
                with self.assertRaises(jsonschema.ValidationError) as refused:
                    render_chart.render(values)
                self.assertIn(said, render_chart.refusal_of(refused.exception))

    def test_patterns_say_in_words_what_they_take(self):
        def look(part, path):
            if isinstance(part, dict):
                if "pattern" in part and path[-1] != "not":
                    self.assertIn("description", part, "/".join(path))
                for key, inner in part.items():
                    look(inner, [*path, key])
        look(json.loads((DEPLOY / "helm/nvshare/values.schema.json").read_text(encoding="utf-8")), ["values"])

    def test_amounts_that_kubernetes_takes(self):
        for amount in (1, 0.5, "50m", "128Mi", "1.5Gi", "2T", "1Ti", "1e9"):
            with self.subTest(amount=amount):
                render_chart.render({"scheduler": {"resources": {"limits": {"memory": amount}}}})
        for number, text in ((2, "2"), (1.5, "1.5")):
            self.assertIn(f'NVSHARE_GPU_MEMORY_OVERSUB_RATIO\n              value: "{text}"', render_chart.render({"plugin": {"oversubscription": number}}))
        for number in (0, 0.05, 101):
            with self.assertRaises(jsonschema.ValidationError):
                render_chart.render({"plugin": {"oversubscription": number}})

    def test_null_takes_a_default_away_as_with_helm(self):
        labels = lambda values: pod_of(next(d for d in documents(render_chart.render(values)) if d["kind"] == "DaemonSet"))["nodeSelector"]
        self.assertEqual(labels({"nodeSelector": {"gpu": "yes"}}), {"gpu": "yes", "nvshare.com/enabled": "true"})
        own = {"nodeSelector": {"gpu": "yes", "nvshare.com/enabled": None}}
        self.assertEqual(labels(own), {"gpu": "yes"})
        self.assertEqual(render_chart.merge({"nodeSelector": {"a": "b"}}, own), {"nodeSelector": {"a": "b", **own["nodeSelector"]}}, "between files it stays")
        self.assertIn("kubectl label node NODE gpu=yes\n", render_chart.notes(own))
        self.assertIn("kubectl label node NODE nvshare.com/enabled=true\n", render_chart.notes())

    def test_places_of_images_that_registries_have(self):
        for repository in ("nvshare", "team/nvshare", "registry.example/team/nvshare", "localhost:5000/nvshare", "[::1]:5000/nvshare", "10.0.0.7:443/a/b-c_d.e"):
            with self.subTest(repository=repository):
                self.assertIn(f"image: {repository}:0.2\n", render_chart.render({"image": {"repository": repository, "tag": "0.2"}}).replace('"', ""))

    def test_names_that_no_cluster_takes_are_refused(self):
        for option in ("--name", "--namespace"):
            done = subprocess.run([sys.executable, ROOT / "tools/render-chart.py", option, "Bad_Name"], capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn(f"argument {option}: 'Bad_Name' is no name in Kubernetes; accepted: small letters, digits and '-'", done.stderr)

    def test_the_schema_takes_amounts_only_that_the_plugin_takes(self):
        amounts = {
            "memoryUnit": (
                "NVSHARE_GPU_MEMORY_UNIT",
                ("1Mi", "512Mi", "1Gi", "1024Gi", "1Ti", "2M", "10M", "500G", "1T"),
                ("0Gi", "0Mi", "1M", "1025Gi", "2Ti", "2T", "4", "1Gb", "1024", "", "-1Gi"),
            ),
            "defaultGpuMemory": (
                "NVSHARE_DEFAULT_GPU_MEMORY",
                ("none", "1Mi", "4Gi", "4096Gi", "1Ti", "4Ti", "4T"),
                ("0Gi", "0Mi", "1M", "4097Gi", "5Ti", "some", ""),
            ),
            "oversubscription": (
                "NVSHARE_GPU_MEMORY_OVERSUB_RATIO",
                ("0.1", "0.25", "1", "1.5", "10", "99.9", "100"),
                ("0", "0.0", "0.05", "100.1", "101", "1000", "-1", "two", ""),
            ),
            "namespaceMaxima": (
                "NVSHARE_NAMESPACE_MAXIMA",
                (
                    "none",
                    "team-a:gpu-memory=16Gi,gpu-core=50;*:gpu-memory=1.5Gi",
                    "a:gpu-core=100",
                    "*:gpu-core=1,gpu-memory=1024Ti",
                    "b:gpu-memory=1Mi",
                    "c:gpu-memory=0.5Gi",
                ),
                (
                    "team-a",
                    "a:gpu-core=0",
                    "a:gpu-core=101",
                    "a:gpu-core=50%",
                    "a:gpu-core=1.5",
                    "a:gpu-memory=16",
                    "a:gpu-memory=0Gi",
                    "a:gpu-memory=1025Ti",
                    "a:gpu-memory=1G",
                    "a:gpu-core=1,gpu-core=2",
                    "-a:gpu-core=1",
                    "a-:gpu-core=1",
                    "A:gpu-core=1",
                    "a" * 64 + ":gpu-core=1",
                    "a:gpus=1",
                    "",
                ),
            ),
        }
        for value, (variable, good, bad) in amounts.items():
            for text in good + bad:
                with self.subTest(value=value, text=text):
                    if text in good:
                        render_chart.render({"plugin": {value: text}})
                    else:
                        with self.assertRaises(jsonschema.ValidationError):
                            render_chart.render({"plugin": {value: text}})
                    if PROGRAMS.device_plugin is None or not text:  # an empty variable is as none
                        continue
                    with tempfile.TemporaryDirectory() as folder:  # a wrong flag is refused last, as above
                        wrong = subprocess.run(
                            [PROGRAMS.device_plugin, "--log-level", "wrong"],
                            env={variable: text}, capture_output=True, text=True, cwd=folder, timeout=60, check=False,
                        )
                    self.assertIn("--log-level" if text in good else variable, wrong.stderr)

    def test_the_schema_names_every_value_and_no_other(self):
        values = yaml.load((DEPLOY / "helm/nvshare/values.yaml").read_text(encoding="utf-8"), StrictLoader)
        schema = json.loads((DEPLOY / "helm/nvshare/values.schema.json").read_text(encoding="utf-8"))
        jsonschema.Draft7Validator.check_schema(schema)

        def compare(value, part, path):
            if not isinstance(value, dict) or "properties" not in part or part.get("additionalProperties", True) is not False:
                return
            self.assertFalse(set(part["properties"]) - set(value) - {"global", "limits", "requests"}, f"{path}: described, but not in values.yaml")
            for key, inner in value.items():
                compare(inner, part["properties"][key], f"{path}.{key}")

        compare(values, schema, "values")

    def test_the_image_has_all_that_its_programs_need(self):
        if PROGRAMS.device_plugin is None or PROGRAMS.library is None:
            self.skipTest("a build without the device plugin makes no image")
        build = pathlib.Path(PROGRAMS.device_plugin).parents[1]
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder, "rootfs")
            made = subprocess.run([DEPLOY / "docker/build.sh", root, build], capture_output=True, text=True, check=False)
            self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
            self.assertEqual((root / "usr/lib/nvshare/libnvshare.so").read_bytes(), pathlib.Path(PROGRAMS.library).read_bytes())
            pod = next(pod_of(document) for document in documents(render_chart.render()) if document["kind"] == "DaemonSet")
            for container in pod["containers"]:
                self.assertTrue((root / container["command"][0].lstrip("/")).is_file(), container["command"])
            self.assertFalse((root / "bin/sh").exists())
            again = subprocess.run([DEPLOY / "docker/build.sh", root, build], capture_output=True, text=True, check=False)
            self.assertNotEqual(again.returncode, 0, "it must not mix two images")


# From the specification of the Container Device Interface, version 0.5.0.
CDI_EDITS = strict(
    env=listed({"type": "string", "pattern": "^[A-Z_]+=."}),
    mounts=listed(
        strict(
            ["hostPath", "containerPath"],
            hostPath={"type": "string", "pattern": "^/"},
            containerPath={"type": "string", "pattern": "^/"},
            options=listed({"enum": ["ro", "nosuid", "nodev", "bind"]}),
        )
    ),
)
CDI = strict(
    ["cdiVersion", "kind", "devices"],
    cdiVersion={"const": "0.5.0"},
    kind={"enum": ["nvshare.com/gpu", "nvshare.com/gpu-memory"]},
    devices=listed(
        strict(
            ["name", "containerEdits"],
            name={"type": "string", "pattern": "^[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?$"},
            containerEdits=CDI_EDITS,
        )
    ),
    containerEdits=CDI_EDITS,
)


class WithDevicePlugin(unittest.TestCase):
    """With a folder of its own."""

    def setUp(self):
        if PROGRAMS.device_plugin is None or PROGRAMS.stand_in is None:
            self.skipTest("a build without the device plugin writes no CDI specifications")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)


class RuntimeConfiguration(WithDevicePlugin):
    """Both programs say at their start whether the container runtime has CDI on. Neither gets far here: there is no kubelet."""

    def log_of(self, program, **environment):
        variables = {
            "LD_LIBRARY_PATH": PROGRAMS.stand_in, "SIMGPU_STATE": str(self.folder / "gpu"), "NVSHARE_LIBRARY": PROGRAMS.library,
            "NVSHARE_INSTALL_DIR": str(self.folder / "install"), "NVSHARE_CDI_DIR": str(self.folder / "cdi"), "NVSHARE_NODE_NAME": "node-1",
            "NVSHARE_KUBELET_DIR": str(self.folder / "kubelet"), "NVSHARE_PLUGINS_DIR": str(self.folder / "plugins"),
            "NVSHARE_REGISTRY_DIR": "/dev/null/registry", "NVSHARE_API_SERVER": "https://127.0.0.1:1", "NVSHARE_RUNTIME_DIR": str(self.folder), **environment,
        }
        process = subprocess.Popen([program], env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            return process.communicate(timeout=2)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            return process.communicate()[0]

    def test_it_is_said_where_cdi_is_off_and_nothing_where_nobody_asks(self):
        runtime = self.folder / "containerd"
        runtime.mkdir()
        config = {"NVSHARE_RUNTIME_CONFIG": str(runtime)}
        section = '[plugins."io.containerd.grpc.v1.cri"]\n'
        for text, part in (
            (section + "enable_cdi = false\n", "config.toml has CDI off: containers get no library and no limit until it has enable_cdi = true"),
            (section + f'enable_cdi = true\ncdi_spec_dirs = ["{self.folder}/cdi"]\n', "config.toml has CDI on"),
            ("[broken\n", "whether the container runtime has CDI on is not known"),
        ):
            (runtime / "config.toml").write_text("version = 2\n" + text, encoding="utf-8")
            for program, mode in ((PROGRAMS.device_plugin, {"NVSHARE_CDI": "on"}), (PROGRAMS.dra_driver, {})):
                if program is None:
                    continue
                with self.subTest(part=part, program=pathlib.Path(program).name):
                    log = self.log_of(program, **config, **mode)
                    self.assertIn(f"container runtime: {runtime}/" if part.startswith("config") else "container runtime: ", log)
                    self.assertIn(part, log)
        self.assertNotIn("container runtime", self.log_of(PROGRAMS.device_plugin, NVSHARE_CDI="on"))
        self.assertNotIn("container runtime", self.log_of(PROGRAMS.device_plugin, **config), "it gives no CDI devices")


class ContainerDevices(WithDevicePlugin):
    """`nvshare-device-plugin --write-cdi`, for docker run --device nvshare.com/gpu=0."""

    def write(self, *flags, **environment):
        variables = {
            "LD_LIBRARY_PATH": PROGRAMS.stand_in, "SIMGPU_STATE": str(self.folder / "gpu"), "SIMGPU_COUNT": "2", "SIMGPU_MEMORY_MB": "3072",
            "NVSHARE_CDI_DIR": str(self.folder / "cdi"), "NVSHARE_INSTALL_DIR": str(self.folder / "install"),
            "NVSHARE_LIBRARY": PROGRAMS.library, "NVSHARE_RUNTIME_DIR": "/run/elsewhere", **environment,
        }
        return subprocess.run([PROGRAMS.device_plugin, "--write-cdi", *flags], env=variables, capture_output=True, text=True, check=False)

    def devices(self):
        """Environment and mounts by qualified name; a name that is there twice is one that no runtime resolves."""
        found = {}
        for file in sorted((self.folder / "cdi").iterdir()):
            self.assertEqual(file.suffix, ".json", "a draft is left")
            spec = json.loads(file.read_text(encoding="utf-8"))
            jsonschema.Draft7Validator(CDI).validate(spec)
            for device in spec["devices"]:
                name = f"{spec['kind']}={device['name']}"
                self.assertNotIn(name, found)
                found[name] = (device["containerEdits"]["env"], spec.get("containerEdits", {}).get("mounts", []))
        return found

    def test_gpus_have_numbers_uuids_and_all_of_them_a_name(self):
        result = self.write()
        self.assertEqual(result.returncode, 0, result.stderr)
        devices = self.devices()
        uuids = [devices[f"nvshare.com/gpu={number}"][0][0].partition("=")[2] for number in (0, 1)]
        self.assertEqual(len(set(uuids)), 2)
        self.assertEqual(
            devices["nvshare.com/gpu=all"][0], ["NVIDIA_VISIBLE_DEVICES=" + ",".join(uuids), "NVSHARE_GPU_MEMORY_GRANT_GPUS=2"]
        )
        for uuid in uuids:
            self.assertEqual(devices[f"nvshare.com/gpu={uuid}"][0], [f"NVIDIA_VISIBLE_DEVICES={uuid}"])
            self.assertIn(uuid, result.stdout)
        self.assertEqual(devices["nvshare.com/gpu-memory=2048Mi"][0], ["NVSHARE_GPU_MEMORY_GRANT=2048Mi", "NVSHARE_GPU_MEMORY_LIMIT=2048Mi"])
        for name, (_, mounts) in devices.items():
            if "gpu-memory" in name:
                self.assertEqual(mounts, [])
                continue
            by_target = {mount["containerPath"]: mount for mount in mounts}
            library = pathlib.Path(by_target["/usr/lib/nvshare/libnvshare.so"]["hostPath"])
            self.assertEqual(library.read_bytes(), pathlib.Path(PROGRAMS.library).read_bytes())
            self.assertEqual(
                pathlib.Path(by_target["/etc/ld.so.preload"]["hostPath"]).read_text(encoding="utf-8"), "/usr/lib/nvshare/libnvshare.so\n"
            )
            self.assertEqual(by_target["/run/nvshare/client"]["hostPath"], "/run/elsewhere/client")
            self.assertTrue(all("ro" in mount["options"] for mount in mounts))
        # Again, with fewer GPUs: names that containers may have stay, numbers are the machine's.
        self.assertEqual(self.write("--gpus", uuids[1]).returncode, 0)
        fewer = self.devices()
        self.assertNotIn("nvshare.com/gpu=0", fewer)
        self.assertEqual(fewer["nvshare.com/gpu=1"][0], [f"NVIDIA_VISIBLE_DEVICES={uuids[1]}"])
        self.assertEqual(fewer["nvshare.com/gpu=all"][0], [f"NVIDIA_VISIBLE_DEVICES={uuids[1]}"])
        self.assertIn(f"nvshare.com/gpu={uuids[0]}", fewer)

    def test_what_cannot_be_written_is_refused_by_name(self):
        (self.folder / "file").write_text("", encoding="utf-8")
        for variable, value in (("NVSHARE_CDI_DIR", str(self.folder / "file/cdi")), ("NVSHARE_LIBRARY", "/nowhere.so")):
            result = self.write(**{variable: value})
            self.assertEqual(result.returncode, 1)
            self.assertIn(value, result.stderr)


class TryWithoutGpu(WithDevicePlugin):
    """deploy/try-without-gpu, as far as it goes without a cluster."""

    FOLDER = DEPLOY / "try-without-gpu"

    def image_variables(self):
        (line,) = re.findall(r"^ENV (.*)$", (self.FOLDER / "Dockerfile").read_text(encoding="utf-8"), re.M)
        return dict(word.split("=", 1) for word in line.split())

    def install(self, **more):
        # As in the image, but for places that are not the machine's own.
        variables = self.image_variables() | {
            "PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": PROGRAMS.stand_in, "STAND_IN": PROGRAMS.stand_in, "PLUGIN": PROGRAMS.device_plugin,
            "NVSHARE_LIBRARY": PROGRAMS.library, "SIMGPU_STATE": str(self.folder / "state/gpu"), **more,
        }
        (self.folder / "state").mkdir(exist_ok=True)
        script = [self.FOLDER / "install-driver.sh", self.folder / "node"]
        return subprocess.run(script, env=variables, capture_output=True, text=True, check=False)

    def test_a_job_finds_the_gpu_that_the_driver_brings(self):
        made = self.install()
        self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
        self.assertEqual(self.install().returncode, 0, "again, at the next start of its pod")
        spec = json.loads((self.folder / "node/var/run/cdi/nvidia.com-gpu.json").read_text(encoding="utf-8"))
        self.assertEqual(spec["kind"], "nvidia.com/gpu")
        (device,) = spec["devices"]
        self.assertIn(device["name"], made.stdout)
        libraries = [mount for mount in spec["containerEdits"]["mounts"] if mount.get("type") != "tmpfs"]
        (state,) = [mount for mount in spec["containerEdits"]["mounts"] if mount.get("type") == "tmpfs"]
        self.assertIn(state["containerPath"], str(self.folder / "state"))
        found = self.folder / "container"
        found.mkdir()
        for mount in libraries:
            shutil.copy(f"{self.folder}/node{mount['hostPath']}", found / pathlib.Path(mount["containerPath"]).name)
        variables = dict(entry.split("=", 1) for entry in spec["containerEdits"]["env"] + device["containerEdits"]["env"])
        job = subprocess.run(
            [pathlib.Path(PROGRAMS.scheduler).with_name("nvshare-demo-job"), "--bytes", "64M", "--steps", "1", "--compute-us", "10"],
            env=variables | {"LD_LIBRARY_PATH": str(found)}, capture_output=True, text=True, check=False,
        )
        self.assertEqual(job.returncode, 0, job.stdout + job.stderr)
        self.assertIn('"event":"result"', job.stdout.replace(" ", ""))

    def test_no_gpu_is_an_error(self):
        made = self.install(SIMGPU_COUNT="0")
        self.assertNotEqual(made.returncode, 0)
        self.assertFalse((self.folder / "node/var/run/cdi/nvidia.com-gpu.json").exists())

    def test_what_the_jobs_ask_for_is_on_offer(self):
        values = values_to_try()
        memory = int(self.image_variables()["SIMGPU_MEMORY_MB"])
        self.assertEqual(values["scheduler"]["env"]["NVSHARE_GPU_PHYSICAL_MEMORY_MB"], str(memory))
        offered = memory * float(values["plugin"]["oversubscription"])
        images = {f"{values['image']['repository']}:{values['image']['tag']}"}
        for name, of_claims in (("two-pods.yaml", False), ("two-pods-dra.yaml", True)):
            every = documents((self.FOLDER / name).read_text(encoding="utf-8"))
            job = every[-1]
            (container,) = pod_of(job)["containers"]
            images.add(container["image"])
            if of_claims:
                asked = every[0]["spec"]["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]["memory"]
                mib = int(asked.removesuffix("Mi"))
            else:
                mib = container["resources"]["limits"]["nvshare.com/gpu-memory"] * int(values["plugin"]["memoryUnit"].removesuffix("Mi"))
            needed = int(container["command"][container["command"].index("--bytes") + 1].removesuffix("M"))
            self.assertLess(needed, mib)
            # What the scheduler keeps back on a real GPU is more than the stand-in has.
            self.assertLess(needed, memory * (100 - int(values["scheduler"]["env"]["NVSHARE_MEMORY_RESERVE_PERCENT"])) / 100)
            self.assertLessEqual(mib * job["spec"]["parallelism"], offered)
            self.assertGreater(needed * job["spec"]["parallelism"], memory, "they take turns")
        text = (self.FOLDER / "Dockerfile").read_text(encoding="utf-8")
        for folder in ("/usr/bin/", "/usr/lib/", "/lib/"):  # what build.sh makes, the programs' libraries included
            self.assertIn(f"COPY --from=build /rootfs{folder} ", text)
        for image in images:
            self.assertIn(f"-t {image} .", text)
            self.assertIn(f"-t {image} .", (ROOT / "docs/how-to/kubernetes-without-a-gpu.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--scheduler", required=True)
    parser.add_argument("--device-plugin")
    parser.add_argument("--dra-driver")
    parser.add_argument("--library")
    parser.add_argument("--stand-in")
    PROGRAMS, rest = parser.parse_known_args()
    for option in ("scheduler", "device_plugin", "dra_driver", "library", "stand_in"):
        if getattr(PROGRAMS, option):
            setattr(PROGRAMS, option, str(pathlib.Path(getattr(PROGRAMS, option)).resolve()))
    unittest.main(argv=[sys.argv[0], *rest])
