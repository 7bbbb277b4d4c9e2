// A client of MCP Apps in a browser: the reference SDK shows the card of a tool, and passes on what the card asks for.
import { AppBridge, PostMessageTransport, getToolUiResourceUri } from "@modelcontextprotocol/ext-apps/app-bridge";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const about = { name: "card-host", version: "1" };
const extensions = { "io.modelcontextprotocol/ui": { mimeTypes: ["text/html;profile=mcp-app"] } };
const client = new Client(about, { capabilities: { extensions } });
await client.connect(new StreamableHTTPClientTransport(new URL("/mcp", location.href)));
const { tools } = await client.listTools();
window.tools = tools.map((tool) => tool.name);
const tool = tools.find((one) => getToolUiResourceUri(one));
const { contents: [resource] } = await client.readResource({ uri: getToolUiResourceUri(tool) });
window.mimeType = resource.mimeType;
const policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'none'";
const frame = document.createElement("iframe");
frame.sandbox = "allow-scripts";
document.body.append(frame);
const bridge = new AppBridge(client, about, { serverTools: {} }, { hostContext: { theme: "light" } });
bridge.oninitialized = async () => {
  bridge.sendToolInput({ arguments: {} });
  bridge.sendToolResult(await client.callTool({ name: tool.name, arguments: {} }));
  window.isShown = true;
};
bridge.onsizechange = ({ height }) => { frame.height = height; };
await bridge.connect(new PostMessageTransport(frame.contentWindow, frame.contentWindow));
frame.srcdoc = `<meta http-equiv="Content-Security-Policy" content="${policy}">${resource.text}`;
