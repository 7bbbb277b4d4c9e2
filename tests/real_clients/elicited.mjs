// Asks a person with the TypeScript SDK, whose window answers with each of ANSWERS (JSON), or declines at null.
// `node elicited.mjs ADDRESS TOKEN ANSWERS < ARGUMENTS` prints the result and what the window showed.
import { readFileSync } from "node:fs";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";

const [address, token, given] = process.argv.slice(2);
const answers = JSON.parse(given);
const client = new Client({ name: "postroom-tests", version: "1" }, { capabilities: { elicitation: {} } });
const shown = [];
client.setRequestHandler(ElicitRequestSchema, async (request) => {
  shown.push(request.params);
  const answer = answers.shift();
  return answer === null ? { action: "decline" } : { action: "accept", content: answer };
});
const headers = { Authorization: `Bearer ${token}` };
await client.connect(new StreamableHTTPClientTransport(new URL(address), { requestInit: { headers } }));
const result = await client.callTool({ name: "ask_person", arguments: JSON.parse(readFileSync(0, "utf-8")) });
await client.close();
console.log(JSON.stringify({ result, shown }));
