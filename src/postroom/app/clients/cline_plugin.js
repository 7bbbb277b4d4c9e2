// Written by `postroom setup cline`; `postroom setup remove cline` takes it away.
// It asks `postroom hook cline EVENT`, which asks the server of this machine. Whatever goes wrong, it says nothing.
import { spawn } from "node:child_process"

const PATIENCE = 10_000 // milliseconds

function ask(event, call) {
  return new Promise((resolve) => {
    const done = (text) => {
      try {
        resolve(JSON.parse(text))
      } catch {
        resolve({})
      }
    }
    const hook = spawn("postroom", ["hook", "cline", event], {
      stdio: ["pipe", "pipe", "ignore"],
      timeout: PATIENCE,
    })
    let said = ""
    hook.stdout.on("data", (piece) => (said += piece))
    hook.on("error", () => done(""))
    hook.on("close", () => done(said))
    hook.stdin.on("error", () => {})
    hook.stdin.end(JSON.stringify(call))
  })
}

const seen = new Set()
let folder = process.cwd()
const session = ({ snapshot }) => ({ session_id: snapshot.conversationId ?? snapshot.agentId, cwd: folder })
const called = (context) => ({ ...session(context), tool_name: context.toolCall.toolName, tool_input: context.input })
const told = ({ additionalContext }) => (additionalContext ? { appendContext: additionalContext } : undefined)

export default {
  name: "postroom",
  manifest: { capabilities: ["hooks"] },
  setup: (_api, context) => {
    folder = context?.workspaceInfo?.rootPath ?? folder
  },
  hooks: {
    beforeRun: async (context) => {
      const call = session(context)
      const event = seen.has(call.session_id) ? "beforeRun" : "run-started"
      seen.add(call.session_id)
      return told(await ask(event, call))
    },
    beforeTool: async (context) => {
      const found = await ask("beforeTool", called(context))
      if (found.permissionDecision === "deny") return { skip: true, reason: found.permissionDecisionReason }
      return told(found)
    },
    afterTool: async (context) =>
      told(await ask("afterTool", { ...called(context), tool_response: context.result.output })),
  },
}
