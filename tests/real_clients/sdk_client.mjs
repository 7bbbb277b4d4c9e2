// Calls each tool with the TypeScript SDK, which checks every answer against the tool's output schema.
// `node sdk_client.mjs ADDRESS TOKEN < CALLS` prints, by tool, the answer or what the SDK says is wrong.
import { readFileSync } from "node:fs";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const [address, token] = process.argv.slice(2);
const calls = JSON.parse(readFileSync(0, "utf-8"));
const client = new Client({ name: "postroom-tests", version: "1" });
const headers = { Authorization: `Bearer ${token}` };
await client.connect(new StreamableHTTPClientTransport(new URL(address), { requestInit: { headers } }));
const listed = (await client.listTools()).tools.map((tool) => tool.name);
const answers = {};
for (const [name, args] of calls) {
  try {
    answers[name] = await client.callTool({ name, arguments: args });
  } catch (error) {
    answers[name] = { failed: String(error) };
  }
}
await client.close();
console.log(JSON.stringify({ listed, answers }));
