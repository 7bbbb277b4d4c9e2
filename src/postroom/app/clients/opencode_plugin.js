// Written by `postroom setup opencode`; `postroom setup remove opencode` takes it away.
// It asks `postroom hook opencode EVENT`, which asks the server of this machine. Whatever goes wrong, it says nothing.
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
    const hook = spawn("postroom", ["hook", "opencode", event], {
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

export const Postroom = async ({ directory }) => {
  const seen = new Set()
  let parts = 0
  const session = (id) => ({ session_id: id, cwd: directory })
  return {
    "chat.message": async (input, output) => {
      const event = seen.has(input.sessionID) ? "chat.message" : "session.created"
      seen.add(input.sessionID)
      const text = (await ask(event, session(input.sessionID))).additionalContext
      if (!text) return
      const { id, sessionID } = output.message
      parts += 1
      output.parts.push({ id: `prt_zz${id.slice(4)}${parts}`, messageID: id, sessionID, type: "text", text, synthetic: true })
    },
    "tool.execute.before": async (input, output) => {
      const call = { ...session(input.sessionID), tool_name: input.tool, tool_input: output.args }
      const found = await ask("tool.execute.before", call)
      if (found.permissionDecision === "deny") throw new Error(found.permissionDecisionReason)
    },
    "tool.execute.after": async (input, output) => {
      const call = { ...session(input.sessionID), tool_name: input.tool, tool_input: input.args }
      const text = (await ask("tool.execute.after", { ...call, tool_response: output.content ?? output.output }))
        .additionalContext
      if (!text) return
      if (Array.isArray(output.content)) output.content.push({ type: "text", text })
      else output.output = `${output.output}\n\n${text}`
    },
    event: async ({ event }) => {
      if (event.type === "session.deleted") await ask(event.type, session(event.properties.info.id))
    },
  }
}
