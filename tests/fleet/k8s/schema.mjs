// schema.mjs - checks values and unknown fields of manifests:  node schema.mjs FILE...
//   values          the JSON schemas of kubernetes-models and of the Prometheus operator
//   unknown fields  the attribute maps of the official client (as strict field validation does)
//   JobSet, Trainer their OpenAPI file, if TRAINER_OPENAPI names it; else they count as unchecked
import fs from 'fs';
import Ajv from 'ajv';
import * as models from '@kubernetes/client-node/dist/gen/models/all.js';
import { read, title } from './manifests.mjs';

let bad = 0;
const unchecked = [];
const fail = (d, text) => { bad++; console.log(`${title(d)}: ${text}`); };

const packageOf = (v) => (v.startsWith('monitoring.coreos.com/') ? '@kubernetes-models/prometheus-operator/' : 'kubernetes-models/') + v;
const openapi = process.env.TRAINER_OPENAPI ? JSON.parse(fs.readFileSync(process.env.TRAINER_OPENAPI)) : null;
const prefix = { 'jobset.x-k8s.io/v1alpha2': 'jobset.v1alpha2.', 'trainer.kubeflow.org/v1alpha1': 'trainer.v1alpha1.' };
// No schema is available for these.
const bare = new Set(['scheduling.volcano.sh/v1beta1']);

async function checkValues(d) {
  const { [d.kind]: Model } = await import(packageOf(d.apiVersion));
  if (!Model) return fail(d, `there is no ${d.kind} in ${d.apiVersion}`);
  try {
    new Model(d).validate();
  } catch (e) {
    fail(d, e.message);
  }
}

function walk(d, type, value, path) {
  if (value === null || typeof value !== 'object') return;
  const list = type.match(/^Array<(.*)>$/), map = type.match(/^{ \[key: string\]: (.*); }$/);
  if (list) return Array.isArray(value) ? value.forEach((x, i) => walk(d, list[1], x, `${path}[${i}]`)) : fail(d, `${path} is no list`);
  if (map) return Object.entries(value).forEach(([k, v]) => walk(d, map[1], v, `${path}.${k}`));
  const known = models[type]?.getAttributeTypeMap?.();
  if (!known) return;
  for (const [k, v] of Object.entries(value)) {
    const field = known.find((a) => a.baseName === k);
    if (field) walk(d, field.type, v, `${path}.${k}`);
    else fail(d, `${path}.${k} is no field of ${type}`);
  }
}

function checkFields(d) {
  const [group, version] = d.apiVersion.includes('/') ? d.apiVersion.split('/') : ['', d.apiVersion];
  const type = version[0].toUpperCase() + version.slice(1) + d.kind;
  if (models[type]) walk(d, type, d, '');
  else if (!group.includes('coreos')) fail(d, `there is no ${type}`);
}

// The file's schemas, changed to refuse unknown fields.
function strict(definitions) {
  const scalars = new Set(['io.k8s.apimachinery.pkg.api.resource.Quantity', 'io.k8s.apimachinery.pkg.util.intstr.IntOrString']);
  const convert = (s) => {
    if (Array.isArray(s)) return s.map(convert);
    if (!s || typeof s !== 'object') return s;
    const o = {};
    for (const k in s)
      if (!['default', 'description', 'format', 'nullable', 'discriminator'].includes(k) && !k.startsWith('x-'))
        o[k] = k === '$ref' ? '#/$defs/' + s[k].split('/').pop() : convert(s[k]);
    if (o.properties && !('additionalProperties' in o) && !o.allOf) o.additionalProperties = false;
    return o.allOf?.length === 1 ? o.allOf[0] : o;
  };
  const out = {};
  for (const k in definitions)
    out[k] = scalars.has(k) ? { anyOf: [{ type: 'string', pattern: '^[0-9.]+([EPTGMk]i?|m|n|u|e[0-9]+)?$|^[0-9]+%$|^[a-z][a-z0-9-]*$' }, { type: 'number' }] } : convert(definitions[k]);
  out['io.k8s.apimachinery.pkg.apis.meta.v1.Time'] = { type: 'string' };
  return out;
}

const defs = openapi ? strict(openapi.definitions ?? openapi.components.schemas) : null;
function checkOpenapi(d) {
  if (!defs) return unchecked.push(title(d));
  const ajv = new (Ajv.default ?? Ajv)({ strict: false, allErrors: true });
  const validate = ajv.compile({ $ref: '#/$defs/' + prefix[d.apiVersion] + d.kind, $defs: defs });
  if (!validate(d)) for (const e of validate.errors.slice(0, 5)) fail(d, `${e.instancePath} ${e.message} ${JSON.stringify(e.params)}`);
}

let n = 0;
for (const file of process.argv.slice(2))
  for (const d of read(file)) {
    n++;
    if (prefix[d.apiVersion]) checkOpenapi(d);
    else if (bare.has(d.apiVersion)) unchecked.push(title(d));
    else {
      await checkValues(d);
      checkFields(d);
    }
  }
console.log(`${n} manifests, ${bad} mistakes` + (unchecked.length ? `, no schema for ${unchecked.join(', ')}` : ''));
process.exit(bad || n === 0 ? 1 : 0);
