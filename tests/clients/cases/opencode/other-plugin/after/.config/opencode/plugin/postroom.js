// Written by `postroom setup opencode`; `postroom setup remove opencode` takes it away.
// It asks `postroom hook opencode EVENT`, which asks the server of this machine. Whatever goes wrong, it says nothing.
import { spawn, spawnSync } from "node:child_process"

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

// Begins a turn of a session that is idle when mail comes: `postroom watch --wake` waits for it, and tells of each message
// once. It runs only between two turns, because in a turn the hooks tell of mail. It ends itself when nobody reads its
// output: that is so when opencode was killed.
function waking(client, directory) {
  const children = new Set() // sessions of subagents
  const settings = new Map() // agent and model of a session's last turn
  let watch
  const stop = () => {
    watch?.kill()
    watch = undefined
  }
  const wait = (id) => {
    stop()
    const words = ["watch", "--wake", "--after", "0"]
    const own = spawn("postroom", words, { cwd: directory, stdio: ["ignore", "pipe", "pipe"] })
    let said = ""
    own.stderr.on("data", (piece) => (said += piece))
    own.on("error", () => {})
    own.on("close", (code) => {
      if (watch !== own) return // a turn has begun
      watch = undefined
      if (code !== 2) return
      const body = { ...settings.get(id), parts: [{ type: "text", text: said.trim() }] }
      client.session.promptAsync({ path: { id }, body }).catch(() => {})
    })
    watch = own
  }
  process.on("exit", stop)
  return {
    begins: ({ sessionID, agent, model }) => {
      stop()
      settings.set(sessionID, { agent, model })
    },
    happened: ({ type, properties }) => {
      if (type === "session.created" && properties.info.parentID) children.add(properties.info.id)
      if (type === "session.idle" && !children.has(properties.sessionID)) wait(properties.sessionID)
    },
  }
}

export const Postroom = async ({ client, directory }) => {
  const isOwn = process.env.POSTROOM_AGENT && !process.env.POSTROOM_RUN // a person's session, of a known agent
  const idle = isOwn ? waking(client, directory) : undefined
  const seen = new Set()
  let parts = 0
  const session = (id) => ({ session_id: id, cwd: directory })
  const end = () => {
    for (const id of seen) {
      spawnSync("postroom", ["hook", "opencode", "session.deleted"], { input: JSON.stringify(session(id)), timeout: 2_000 })
    }
    seen.clear()
  }
  process.on("exit", end) // its sessions end with opencode
  return {
    "chat.message": async (input, output) => {
      idle?.begins(output.message)
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
      idle?.happened(event)
      if (event.type !== "session.deleted") return
      seen.delete(event.properties.info.id)
      await ask(event.type, session(event.properties.info.id))
    },
  }
}
