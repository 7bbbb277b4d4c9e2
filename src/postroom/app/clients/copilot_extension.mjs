// Written by `postroom setup copilot --extension`; `postroom setup remove copilot` removes this file.
// While the session is idle, `postroom hook copilot wait` waits for mail. It exits with 2 and one line when mail came, and the
// extension sends this line as a prompt, which begins a turn. In a turn, the hooks tell of mail. A failure ends the wait only.
import { joinSession } from "@github/copilot-sdk/extension"
import { spawn } from "node:child_process"

const MAIL_CAME = 2 // the exit code
const session = await joinSession({ tools: [] })
let waiter

function stop() {
  waiter?.kill()
  waiter = undefined
}

function wait(event) {
  stop()
  const own = spawn("postroom", ["hook", "copilot", "wait"], { stdio: ["pipe", "ignore", "pipe"] })
  let line = ""
  own.stderr.on("data", (piece) => (line += piece))
  own.on("error", () => {})
  own.on("close", (code) => {
    if (waiter !== own) return // a turn has begun
    waiter = undefined
    if (code === MAIL_CAME) session.send({ prompt: line.trim() }).catch(() => {})
  })
  own.stdin.on("error", () => {})
  own.stdin.end(JSON.stringify({ session_id: session.sessionId, cwd: process.cwd(), hook_event_name: event }))
  waiter = own
}

session.on("user.message", stop)
session.on("session.idle", () => wait("Stop"))
process.on("exit", stop)
process.on("SIGTERM", () => process.exit(0))
wait("SessionStart")
