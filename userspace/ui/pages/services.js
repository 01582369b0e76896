import { usePolled } from "../live.js";
import { Failure } from "../parts.js";
import { html } from "../vendor/preact-htm.js";
import { Records, Troubles } from "./records.js";

export function Services() {
  const { data, error } = usePolled("/api/v1/services", 2000);
  const services = data?.services ?? [];
  return html`<h1>Services</h1>
    <p class="about">Layer-4 services: packets are forwarded by programs in the kernel, by consistent hashing.</p>
    <${Failure} error=${error} /><${Troubles} list=${data?.troubles} />
    <${Records} caption="Services" rows=${services} hide=${["hosts", "backends"]} empty="No layer-4 service is configured." />
    ${services.filter((service) => (service.hosts ?? service.backends ?? []).length).map((service) => html`
      <h2>${service.name}, ${service.protocol}</h2>
      <${Records} caption=${`Hosts of ${service.name}, ${service.protocol}`} rows=${service.hosts ?? service.backends} empty="No host." />`)}
    ${data?.hooks.length ? html`<h2>Programs</h2><${Records} caption="Programs on interfaces" rows=${data.hooks} empty="" />` : null}
    ${data?.not_exposed.length ? html`<h2>Not exposed</h2><${Records} caption="Applications that are not exposed" rows=${data.not_exposed} empty="" />` : null}`;
}
