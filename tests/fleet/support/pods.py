"""pods.py - the pods of a rendered overlay: the part of Kubernetes' controllers that decides names, labels, environment and volumes.

Reads StatefulSets and Indexed Jobs; Services give names, ConfigMaps and Secrets give values.  Pure: it starts nothing.
An unsupported field that would affect a process is an error, so that a manifest cannot pass half read.
"""
import base64
import copy
import re


class Unreadable(Exception):
    """The manifest has something that a rehearsal cannot do."""


class Fleet:
    """All objects of an overlay, by kind and name."""

    def __init__(self, documents):
        self.objects = {}
        for document in documents:
            for item in document.get("items", [document]) if document else []:
                self.objects[(item["kind"], item["metadata"]["name"])] = item

    def kind(self, kind):
        return [o for (k, _), o in self.objects.items() if k == kind]

    def need(self, kind, name, who):
        if (kind, name) not in self.objects:
            raise Unreadable(f"{who} needs {kind} '{name}', which is not in the overlay")
        return self.objects[(kind, name)]

    def values(self, kind, name, who):
        """key -> bytes of a ConfigMap or Secret."""
        thing = self.need(kind, name, who)
        plain = thing.get("data") or {}
        if kind == "ConfigMap":
            return {k: v.encode() for k, v in plain.items()}
        values = {k: base64.b64decode(v) for k, v in plain.items()}
        values.update({k: v.encode() for k, v in (thing.get("stringData") or {}).items()})
        return values


class Pod:
    """One pod, as its controller would make it: the template, and the parts that depend on its number."""

    def __init__(self, fleet, owner, name, number, template, extra_labels, annotations, subdomain):
        meta = template.get("metadata") or {}
        self.fleet, self.owner, self.name, self.number = fleet, owner, name, number
        self.namespace = owner["metadata"].get("namespace", "default")
        self.labels = dict(meta.get("labels") or {}, **extra_labels)
        self.annotations = dict(meta.get("annotations") or {}, **annotations)
        self.spec = template["spec"]
        self.subdomain = self.spec.get("subdomain") or subdomain
        if len(self.spec["containers"]) != 1 or self.spec.get("initContainers"):
            raise Unreadable(f"{name} has more than one container: a rehearsal starts one for each pod")
        self.container = self.spec["containers"][0]
        self.grace = self.spec.get("terminationGracePeriodSeconds", 30)

    @property
    def who(self):
        return f"{self.owner['kind']}/{self.owner['metadata']['name']}"

    def names(self):
        """Every name by which Services let others reach this pod."""
        found = []
        for service in self.fleet.kind("Service"):
            wanted = service["spec"].get("selector") or {}
            if not wanted or any(self.labels.get(k) != v for k, v in wanted.items()):
                continue
            name = service["metadata"]["name"]
            heads = [name]
            if service["spec"].get("clusterIP") == "None" and self.subdomain == name:
                heads.append(f"{self.name}.{name}")
            tails = ["", f".{self.namespace}", f".{self.namespace}.svc", f".{self.namespace}.svc.cluster.local"]
            found += [head + tail for head in heads for tail in tails]
        return found

    def environment(self, ip):
        """name -> text, in Kubernetes' order: envFrom first, env after it, $(NAME) from entries above."""
        result = {}
        for source in self.container.get("envFrom") or []:
            for key, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
                if key in source:
                    pairs = self.fleet.values(kind, source[key]["name"], self.who)
                    result.update({source.get("prefix", "") + k: v.decode() for k, v in pairs.items()})
        for row in self.container.get("env") or []:
            result[row["name"]] = self.expand(row["value"], result) if "value" in row else self.value_from(row, ip)
        if self.owner["kind"] == "Job":
            result["JOB_COMPLETION_INDEX"] = str(self.number)
        return result

    @staticmethod
    def expand(text, known):
        return re.sub(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)", lambda m: known.get(m[1], m[0]), str(text))

    def value_from(self, row, ip):
        source = row.get("valueFrom") or {}
        if "fieldRef" in source:
            return self.field(source["fieldRef"]["fieldPath"], ip)
        for key, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
            if key in source:
                pairs = self.fleet.values(kind, source[key]["name"], self.who)
                if source[key]["key"] not in pairs:
                    raise Unreadable(f"{self.who}: {kind} '{source[key]['name']}' has no key '{source[key]['key']}'")
                return pairs[source[key]["key"]].decode()
        raise Unreadable(f"{self.who}: where {row['name']} comes from is not understood: {source or 'nowhere'}")

    def field(self, path, ip):
        plain = {"metadata.name": self.name, "metadata.namespace": self.namespace, "status.podIP": ip, "status.hostIP": ip,
                 "spec.nodeName": "rehearsal"}
        if path in plain:
            return plain[path]
        match = re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path)
        if match:
            return (self.labels if match[1] == "labels" else self.annotations).get(match[2], "")
        raise Unreadable(f"{self.who}: fieldPath '{path}' is not understood")

    def command(self, ip):
        """Entry point (None: the image's) and arguments."""
        known = self.environment(ip)
        words = [[self.expand(w, known) for w in self.container.get(k) or []] for k in ("command", "args")]
        return words[0] or None, words[1]

    def volume(self, name):
        for volume in self.spec.get("volumes") or []:
            if volume["name"] == name:
                return volume
        for claim in self.owner["spec"].get("volumeClaimTemplates") or []:
            if claim["metadata"]["name"] == name:
                return {"persistentVolumeClaim": {"claimName": f"{name}-{self.name}", "own": True}}
        raise Unreadable(f"{self.who} mounts '{name}', which is no volume of it")

    def security(self):
        """The pod's setting, overridden by the container's."""
        return {**(self.spec.get("securityContext") or {}), **(self.container.get("securityContext") or {})}

    def port(self, wanted):
        if isinstance(wanted, int):
            return wanted
        for port in self.container.get("ports") or []:
            if port.get("name") == wanted:
                return port["containerPort"]
        raise Unreadable(f"{self.who}: no port is named '{wanted}'")


def pods_of(fleet):
    """The pods that controllers make at the start, by workload."""
    return {f"{o['kind']}/{o['metadata']['name']}": [make(fleet, o, i) for i in range(count)]
            for kind, key in (("StatefulSet", "replicas"), ("Job", "completions"))
            for o in fleet.kind(kind) for count in [o["spec"].get(key, 1)]}


def make(fleet, owner, number):
    """Pod `number` of a StatefulSet or Indexed Job."""
    name, spec = owner["metadata"]["name"], owner["spec"]
    pod_name = f"{name}-{number}"
    template = copy.deepcopy(spec["template"])
    if owner["kind"] == "StatefulSet":
        labels = {"apps.kubernetes.io/pod-index": str(number), "statefulset.kubernetes.io/pod-name": pod_name}
        wanted = spec["selector"]["matchLabels"]
        have = (template["metadata"].get("labels") or {})
        if any(have.get(k) != v for k, v in wanted.items()):
            raise Unreadable(f"StatefulSet/{name} selects pods that it does not make: {wanted}")
        fleet.need("Service", spec["serviceName"], f"StatefulSet/{name}")
        return Pod(fleet, owner, pod_name, number, template, labels, {}, spec["serviceName"])
    if spec.get("completionMode") != "Indexed":
        raise Unreadable(f"Job/{name} is not Indexed: its pods have no rank")
    index = {"batch.kubernetes.io/job-completion-index": str(number)}
    labels = dict(index, **{"batch.kubernetes.io/job-name": name, "job-name": name})
    return Pod(fleet, owner, pod_name, number, template, labels, index, None)
