// manifests.mjs - reads manifests, and answers the questions that several checks share.
import fs from 'fs';
import * as yaml from 'js-yaml';

export const read = (file) => yaml.loadAll(fs.readFileSync(file, 'utf8')).filter(Boolean);
export const title = (d) => `${d.kind}/${d.metadata?.name}`;

// Every pod template: its place, its number of pods, and the labels of those pods.
export function pods(docs) {
  const found = [];
  const add = (owner, where, template, count, extra = {}) =>
    found.push({ owner, where, count, labels: template.metadata?.labels ?? {}, spec: template.spec, ...extra });
  const addSet = (owner, set) => {
    for (const r of set.replicatedJobs ?? [])
      add(owner, `${title(owner)} ${r.name}`, r.template.spec.template, (r.replicas ?? 1) * (r.template.spec.parallelism ?? 1),
        { job: r.template.spec, set });
  };
  for (const d of docs) {
    if (d.kind === 'StatefulSet') add(d, title(d), d.spec.template, d.spec.replicas ?? 1);
    if (d.kind === 'Job') add(d, title(d), d.spec.template, d.spec.parallelism ?? 1, { job: d.spec });
    if (d.kind === 'JobSet') addSet(d, d.spec);
    if (d.kind.endsWith('TrainingRuntime')) addSet(d, d.spec.template.spec);
  }
  return found;
}

// scheduler, server or worker, by its command.
export function role(container) {
  const word = container.args?.[0];
  return word === 'scheduler' || word === 'server' ? word : 'worker';
}

export const matches = (selector, labels) =>
  Object.entries(selector?.matchLabels ?? {}).every(([k, v]) => labels[k] === v) && !selector?.matchExpressions;

// The variables of a container, in the order of their creation: {name, value, from}.
export function variables(docs, container) {
  const out = [];
  for (const source of container.envFrom ?? []) {
    const map = docs.find((d) => d.kind === 'ConfigMap' && d.metadata.name === source.configMapRef?.name);
    for (const [name, value] of Object.entries(map?.data ?? {})) out.push({ name, value });
  }
  for (const e of container.env ?? []) out.push({ name: e.name, value: e.value, from: e.valueFrom });
  return out;
}

const units = { '': 1, m: 1e-3, k: 1e3, M: 1e6, G: 1e9, Ki: 1024, Mi: 1024 ** 2, Gi: 1024 ** 3, Ti: 1024 ** 4 };
export function quantity(text) {
  const m = String(text).match(/^([0-9.]+)([a-zA-Z]*)$/);
  return m && m[2] in units ? Number(m[1]) * units[m[2]] : NaN;
}
