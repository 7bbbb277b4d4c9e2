"""The content of `gateway.toml`: refusals with their words, and no secret is ever shown."""

import re
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from postroom.app.config import Settings, load_settings
from postroom.app.gateway_config import AgentConfig, GatewayFile, ModelPrices, load_gateway
from postroom.app.gateway_wiring import examine, outline
from postroom.app.tables import read_table
from postroom.contracts.chat_people import PairingRules, PersonRole
from postroom.contracts.errors import ConfigError, MissingExtra
from postroom.extras import install_command
from postroom.gateway.config import (
    BusyPolicy,
    ChatRules,
    DeliveryConfig,
    GatewayRules,
    ResetMode,
    Route,
    StreamingConfig,
)
from postroom.gateway.platforms import ADAPTERS, load_adapter_class
from postroom.gateway.platforms.email import EmailOptions
from postroom.gateway.platforms.matrix import MatrixOptions
from postroom.gateway.platforms.slack import SlackOptions
from postroom.gateway.platforms.telegram import TelegramOptions
from postroom.gateway.platforms.web import WebOptions
from postroom.gateway.platforms.webhook import WebhookOptions
from postroom.gateway.session import Platform
from postroom.toml_files import TableName, fields_of
from table_rows import each_row

SECRET = "s3cret-of-sixteen-chars"
AGENT = '[agent]\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\n'
WEB = '[platforms.web]\ntoken_env = "CHAT_TOKEN"\n'
ENVIRONMENT = {"CHAT_TOKEN": SECRET, "OTHER_KEY": "other-" + SECRET}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


def secret_file(home: Path, name: str, content: str = f"{SECRET}\n", mode: int = 0o600) -> Path:
    path = home / name
    path.write_text(content)
    path.chmod(mode)
    return path


def read(home: Path, text: str, **environment: str) -> GatewayFile:
    (home / "gateway.toml").write_text(text, encoding="utf-8")
    told = load_gateway(
        Settings(data_dir=home), environment={**ENVIRONMENT, "HOME": str(home), **environment}
    )
    assert told is not None
    return told


def refusal(home: Path, text: str, **environment: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read(home, text, **environment)
    shown = str(caught.value.as_dict())
    assert SECRET not in shown
    assert str(home / "gateway.toml") in shown
    assert caught.value.remedy
    return caught.value


def test_no_file_means_no_gateway(home: Path) -> None:
    assert load_gateway(Settings(data_dir=home), environment={}) is None


def test_a_file_that_a_setting_names_must_be_there(home: Path) -> None:
    given = {"HOME": str(home), "POSTROOM_GATEWAY_FILE": str(home / "chats.toml")}
    with pytest.raises(ConfigError, match=r"chats\.toml cannot be read: the file does not exist"):
        load_gateway(load_settings(environment=given), environment=given)


def test_the_least_that_a_file_needs(home: Path) -> None:
    told = read(home, AGENT + WEB)
    assert told.agent.model == "m"
    assert told.agent.api_key is None
    assert told.gateway.get_connected_platforms() == (Platform.WEB,)
    assert told.gateway.platforms[Platform.WEB].token == SECRET
    assert told.gateway.busy.mode is BusyPolicy.QUEUE
    assert told.gateway.state_dir == home / "gateway"
    assert SECRET not in repr(told)
    assert SECRET not in str(outline(told))


def test_a_run_of_a_model_has_an_end_whatever_the_file_says(home: Path) -> None:
    agent = '[agent]\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\n'
    web = '[platforms.web]\ntoken_file = "token"\n'
    secret_file(home, "token")
    assert read(home, agent + web).agent.max_run == timedelta(minutes=30)
    assert read(home, f'{agent}max_run = "90s"\n{web}').agent.max_run == timedelta(seconds=90)


def test_everything_that_holds_for_all_channels_can_be_set(home: Path) -> None:
    config = read(
        home,
        AGENT + WEB + 'busy = "steer"\nbusy_chats = {ada = "reject"}\nreset = {mode = "idle", idle = "30m"}\n'
        "[gateway]\n"
        'unauthorized_dm_behavior = "ignore"\ngroup_sessions_per_user = false\nmax_message_age = "90s"\n'
        'keep_messages = "P2D"\ndrain = "500ms"\nmax_media_bytes = 5\ncommand_roles = {stop = "owner"}\n'
        '[gateway.busy]\nmode = "collect"\nmax_waiting = 7\n'
        '[gateway.reset]\nmode = "daily"\nat_hour = 3\nnotify = false\n'
        '[gateway.reset_by_type.group]\nmode = "idle"\nidle = "2h"\n'
        '[gateway.streaming]\nenabled = false\nedit_interval = "2s"\nbuffer_threshold = 9\n'
        '[gateway.delivery]\nmax_attempts = 3\nfirst_retry = "2s"\nlongest_retry = "1m"\nmax_age = "1h"\nlease = "20s"\n'
        '[gateway.pairing]\ncode = "10m"\nask_again = "1m"\nmost_open = 2\nmost_wrong = 4\nlocked = "2h"\n',
    ).gateway
    assert (config.busy.mode, config.busy.max_waiting) == (BusyPolicy.COLLECT, 7)
    assert config.get_busy_mode(Platform.WEB, "ben") is BusyPolicy.STEER
    assert config.get_busy_mode(Platform.WEB, "ada") is BusyPolicy.REJECT
    assert config.default_reset_policy.at_hour == 3
    assert not config.default_reset_policy.notify
    assert config.get_reset_policy(Platform.SLACK, "group").idle_minutes == 120
    assert config.get_reset_policy(Platform.WEB, "group").idle_minutes == 30
    assert config.get_reset_policy(Platform.SLACK, "dm").mode is ResetMode.DAILY
    assert (config.max_message_age, config.keep_messages) == (timedelta(seconds=90), timedelta(days=2))
    assert (config.drain, config.max_media_bytes) == (timedelta(milliseconds=500), 5)
    assert config.command_roles == {"stop": PersonRole.OWNER}
    assert not config.group_sessions_per_user
    assert config.thread_sessions_per_user
    assert config.unauthorized_dm_behavior == "ignore"
    assert (config.streaming.enabled, config.streaming.buffer_threshold) == (False, 9)
    assert (config.delivery.max_attempts, config.delivery.lease) == (3, timedelta(seconds=20))
    assert (config.pairing.code_ms, config.pairing.most_wrong, config.pairing.locked_ms) == (
        600_000,
        4,
        7_200_000,
    )


def test_a_platform_says_who_may_write_and_where_its_home_is(home: Path) -> None:
    text = (
        '[platforms.telegram]\ntoken_env = "CHAT_TOKEN"\nallow = {"4711" = "owner", "*" = "viewer"}\n'
        'home_channel = {chat_id = "-100", name = "Team", thread_id = "7"}\npoll_seconds = 20\n'
        "reactions = false\n"
        '[platforms.telegram.extra]\nbase_url = "http://127.0.0.1:1"\n'
    )
    telegram = read(home, AGENT + text).gateway.platforms[Platform.TELEGRAM]
    assert telegram.allow == {"4711": PersonRole.OWNER, "*": PersonRole.VIEWER}
    assert telegram.home_channel is not None
    assert telegram.reactions is False
    assert (telegram.home_channel.chat_id, telegram.home_channel.thread_id) == ("-100", "7")
    assert isinstance(telegram, TelegramOptions)
    assert (telegram.poll_seconds, telegram.base_url) == (20, "http://127.0.0.1:1")


def test_single_chats_have_rules_of_their_own(home: Path) -> None:
    gateway = read(
        home,
        '[agent]\nrun = "Bo@harbour"\n'
        + WEB
        + 'busy_chats = {ada = "reject", ben = "steer"}\n'
        + '[platforms.web.chats.ada]\nbusy = "collect"\nreset = {mode = "idle", idle = "5m"}\n'
        + 'quiet = "22:00-7:00 Europe/Berlin"\nmodel = "small"\ninstructions = "Be brief."\n',
    ).gateway
    ada = gateway.get_rules(Platform.WEB, "ada")
    assert (str(ada.quiet), ada.model, ada.instructions) == (
        "22:00-07:00 Europe/Berlin",
        "small",
        "Be brief.",
    )
    assert gateway.get_reset_policy(Platform.WEB, "dm", "ada").idle_minutes == 5
    assert gateway.get_reset_policy(Platform.WEB, "dm", "ben").mode is ResetMode.NONE
    assert gateway.get_busy_mode(Platform.WEB, "ada") is BusyPolicy.COLLECT
    assert gateway.get_busy_mode(Platform.WEB, "ben") is BusyPolicy.STEER  # as earlier versions wrote it
    assert gateway.get_rules(Platform.WEB, "cy") == ChatRules()
    assert gateway.programs == {None}


def test_an_agent_offers_models_with_prices_which_count_for_its_endpoint_alone(home: Path) -> None:
    told = read(
        home,
        '[agent]\nbase_url = "http://a.test/v1"\nmodel = "m"\n'
        '[agent.models.m]\ninput_price = 0.5\noutput_price = 4\n[agent.models."large:2"]\n'
        + WEB
        + "show_cost = true\n".join(("[platforms.web.chats.ada]\n", "[gateway]\n"))
        + "show_cost = false\n"
        '[agents.poet]\ninstructions = "Rhyme."\n[agents.far]\nbase_url = "http://b.test/v1"\n'
        '[[routes]]\nagent = "poet"\nmention = "poet"\n[[routes]]\nagent = "far"\nmention = "far"\n',
    )
    assert told.agent.models == {"m": ModelPrices(input_price=0.5, output_price=4), "large:2": ModelPrices()}
    assert told.gateway.models == {None: ("m", "large:2"), "poet": ("m", "large:2"), "far": ()}
    assert told.gateway.own_models[None] == told.agent.model
    assert told.gateway.get_rules(Platform.WEB, "ada").show_cost is True
    assert told.gateway.show_cost is False
    with pytest.raises(ConfigError, match="input_price"):
        read(home, '[agent]\nbase_url = "http://a.test/v1"\nmodel = "m"\nmodels.m.input_price = -1\n' + WEB)


def test_the_speech_endpoint_has_a_model_a_voice_and_a_key_that_is_not_shown(home: Path) -> None:
    speech = AGENT + 'speech_url = "http://a.test/v1"\n'
    plain = read(home, speech + WEB)
    assert (plain.agent.speech_model, plain.agent.speech_voice) == ("tts-1", "alloy")
    assert (plain.agent.speech_key, plain.gateway.speaks) == (None, True)
    told = read(home, speech + 'speech_model = "m"\nspeech_voice = "v"\nspeech_key_env = "OTHER_KEY"\n' + WEB)
    assert (told.agent.speech_url, told.agent.speech_model) == ("http://a.test/v1", "m")
    assert (told.agent.speech_voice, told.agent.speech_key) == ("v", "other-" + SECRET)
    assert SECRET not in f"{told!r} {outline(told)}"
    examine(told, Settings(data_dir=home))
    assert read(home, AGENT + WEB).gateway.speaks is False
    for wrong, words in (
        ('speech_url = "mouth"\n', "speech_url"),
        ('speech_url = "http://a.test/v1"\nspeech_voice = ""\n', "speech_voice"),
        ("speech_model = 5\n", "speech_model"),
        ('speech_key = "abc"\n', "speech_key"),
        ('speech_key_env = "NOT_THERE"\n', "speech_key_env"),
        ('speech_key_env = "OTHER_KEY"\nspeech_key_file = "key"\n', "speech_key_file"),
        ('[agents.other]\nspeech_voice = "v"\n', "speech_voice is set"),
    ):
        with pytest.raises(ConfigError, match=re.escape(words)):
            read(home, AGENT + wrong + WEB)


def test_routes_name_agents_and_models_that_take_over_what_they_leave_out(home: Path) -> None:
    told = read(
        home,
        '[agent]\nbase_url = "http://a.test/v1"\nmodel = "m"\napi_key_env = "OTHER_KEY"\nid = "lights"\n'
        'instructions = "Be brief."\n' + WEB + "[gateway]\ngroup_context = 9\n"
        '[agents.poet]\ninstructions = "Rhyme."\nmodel = "verse"\n'
        '[agents.far]\nbase_url = "http://b.test/v1"\n'
        '[[routes]]\nagent = "poet"\nplatform = "web"\nchat = ["ada", "ben"]\n'
        '[[routes]]\nagent = "Bo@harbour"\nmention = "bo"\n[[routes]]\nagent = "lights"\n',
    )
    poet, far, bo = (told.others[name] for name in ("poet", "far", "Bo@harbour"))
    assert (poet.base_url, poet.model, poet.instructions) == ("http://a.test/v1", "verse", "Rhyme.")
    assert poet.api_key == "other-" + SECRET
    assert (far.model, far.api_key) == ("m", None)  # a key is for its own endpoint
    assert bo.run == ("harbour", "Bo")
    assert told.gateway.routes == (
        Route(agent="poet", platform=("web",), chat=("ada", "ben")),
        Route(agent="Bo@harbour", mention=("bo",)),
        Route(),
    )
    assert told.gateway.group_context == 9
    assert [one["agent"] for one in outline(told)["routes"]] == ["poet", "Bo@harbour", "default", "default"]


def test_a_disabled_platform_needs_no_secret_yet(home: Path) -> None:
    told = read(home, AGENT + WEB + '[platforms.slack]\nenabled = false\ntoken_env = "NOT_THERE"\n')
    assert told.gateway.get_connected_platforms() == (Platform.WEB,)


def test_secrets_come_from_the_environment_and_from_private_files(home: Path) -> None:
    secret_file(home, "one"), secret_file(home, "two", "two-" + SECRET)
    told = read(
        home,
        '[agent]\nbase_url = "https://x.test/v1"\nmodel = "m"\napi_key_file = "two"\n'
        '[platforms.slack]\ntoken_file = "one"\napp_token_env = "OTHER_KEY"\nsigning_secret_file = "two"\n'
        '[platforms.email]\npassword_env = "CHAT_TOKEN"\nsmtp_password_file = "two"\naddress = "a@b.test"\n'
        'imap_host = "localhost"\nsmtp_host = "localhost"\nca_file = "certs/ca.pem"\n'
        '[platforms.webhook.routes.ci]\nsecret_env = "OTHER_KEY"\ncallback_secret_file = "two"\nscheme = "github"\n'
        '[platforms.web]\ntoken_env = "CHAT_TOKEN"\n[platforms.web.people.ben]\ntoken_file = "two"\n'
        '[platforms.matrix]\ntoken_env = "CHAT_TOKEN"\nbase_url = "https://m.test"\n',
    )
    of = told.gateway.platforms
    slack, email, hooks, web = (
        of[name] for name in (Platform.SLACK, Platform.EMAIL, Platform.WEBHOOK, Platform.WEB)
    )
    matrix = of[Platform.MATRIX]
    assert told.agent.api_key == "two-" + SECRET
    assert isinstance(slack, SlackOptions)
    assert (slack.token, slack.api_key, slack.signing_secret) == (SECRET, "other-" + SECRET, "two-" + SECRET)
    assert isinstance(email, EmailOptions)
    assert (email.token, email.api_key, email.ca_file) == (
        SECRET,
        "two-" + SECRET,
        str(home / "certs/ca.pem"),
    )
    assert isinstance(hooks, WebhookOptions)
    hook = hooks.routes["ci"]
    assert (hook.secret, hook.callback_secret, hook.scheme) == ("other-" + SECRET, "two-" + SECRET, "github")
    assert isinstance(web, WebOptions)
    assert {name: one.token for name, one in web.people.items()} == {"ben": "two-" + SECRET}
    assert isinstance(matrix, MatrixOptions)
    assert matrix.sync_file == str(home / "gateway" / "matrix-sync.json")
    assert SECRET not in f"{told!r} {told.gateway!r} {told.agent!r} {hook!r} {web.people!r} {outline(told)}"


def rows(table: str) -> list[tuple[str, ...]]:
    """Return the rows of a table: a file, with `\\n` for the ends of its lines, and words of the refusal."""
    parts = {"AGENT": AGENT, "WEB": WEB, "MAIL": MAIL, "HOOK": HOOK, "SECRET": SECRET}
    for name, part in parts.items():
        table = table.replace(f"{{{name}}}", part.replace("\n", "\\n"))
    return [
        tuple(cell.replace("\\n", "\n") for cell in row.split(" | ")) for row in table.strip().splitlines()
    ]


MAIL = (
    '[platforms.email]\npassword_env = "CHAT_TOKEN"\naddress = "a@b.test"\n'
    'imap_host = "localhost"\nsmtp_host = "localhost"\n'
)
HOOK = '[platforms.webhook.routes.ci]\nsecret_env = "OTHER_KEY"\n'
BAD = rows(r"""
[agent\n | not TOML | remove it to run the server without chats
{AGENT}{WEB}[gatway]\n | no setting is called 'gatway' | did you mean gateway?
agent = 3\n | agent is not a table | write it as [agent]
{AGENT}{WEB}[[agents]]\nname = "Bo"\n | agents is not a table | write it as [agents.<name>]
{WEB} | there is no [agent] | base_url
[agent]\nbase_url = "http://x/v1"\n{WEB} | [agent]: model is missing | add model
[agent]\nbase_url = "x"\nmodel = "m"\n{WEB} | [agent]: base_url is 'x' | correct
[agent]\nrun = "A\u0000@x"\n{WEB} | write run = "name@project" | run
[agent]\nrun = "A b@x"\n{WEB} | write run = "name@project" | run
{AGENT}{WEB}[[routes]]\nagent = "A\u0007@x"\n | [routes, rule 1]: there is no agent 'A | name@project
{AGENT}{WEB}[agents.poet]\nmodel = "a\u0007b"\n | [agents.poet]: model must be a text of one line | model
{AGENT}{WEB}[[routes]]\nagent = "A b@x"\n | [routes, rule 1]: there is no agent 'A b@x' | name@project
{AGENT} | no platform is enabled | platforms.<name>
{AGENT}[platforms.web]\nenabled = false\n | no platform is enabled | platforms.<name>
{AGENT}[platforms.telegramm]\n | [platforms] | did you mean telegram?
{AGENT}[platforms.openai]\n | no setting is called 'openai' | there are api_server, discord, email
{AGENT}[platforms.telegram]\nnonsense = 1\n | no setting is called 'nonsense' | poll_seconds, proxy, reactions, reset, timeout_ms, token_env, token_file
{AGENT}{WEB}[platforms.web.chats.ada]\nquiet = '22-7'\n | quiet is '22-7': write 22:00-07:00 | quiet
{AGENT}[platforms.local]\n | no setting is called 'local' | telegram
{AGENT}{WEB}titel = 'x'\n | [platforms.web]: no setting is called 'titel' | title
{AGENT}[platforms.web]\ntokn_env = 'X'\n | 'tokn_env' | did you mean token_env?
{AGENT}{WEB}[platforms.web.extra]\nx9 = 1\n | no setting is called 'x9' | title
{AGENT}{WEB}title = 'a'\n[platforms.web.extra]\ntitle = 'b'\n | title is set twice | extra
{AGENT}{WEB}extra = 1\n | extra is not a table | [platforms.web.extra]
{AGENT}{WEB}[gateway.busy]\nmode = "wait"\n | [gateway.busy]: mode is 'wait' | mode
{AGENT}{WEB}[gateway]\nbusy = "collect"\n | [gateway.busy]: the value is not a table | write it as [gateway.busy] with mode
{AGENT}{WEB}[gateway]\nbusy = "wait"\n | [gateway.busy]: the value is not a table | write it as [gateway.busy] with mode or max_waiting
{AGENT}{WEB}[gateway.busy]\nmod = 1\n | [gateway.busy]: no setting | did you mean mode?
{AGENT}{WEB}[gateway]\ndrain = 30\n | drain is '30': write a duration with its unit | drain
{AGENT}{WEB}[gateway.reset]\nidle = "90s"\n | write a number of whole minutes | idle
{AGENT}{WEB}[gateway.busy]\nmax_waiting = "7"\n | max_waiting is '7' | max_waiting
{AGENT}{WEB}[gateway.reset]\nat_hour = 24\n | at_hour is '24' | at_hour
{AGENT}{WEB}enabled = "no"\n | enabled is 'no' | enabled
{AGENT}{WEB}allow = {ada = "boss"}\n | [platforms.web.allow]: ada is 'boss' | ada
{AGENT}{WEB}[gateway]\ncommand_roles = {halt = "owner"}\n | [gateway.command_roles]: no command is called 'halt' | the commands are agent, answer, approve
{AGENT}{WEB}[gateway.reset_by_type.room]\nmode = "idle"\n | [gateway.reset_by_type]: 'room' is not valid: write dm, group | room
{AGENT}{WEB}[gateway.reset_by_type.dm]\nmod = 1\n | reset_by_type.dm] | mode?
{AGENT}{WEB}people = {ben = 'x'}\n | [platforms.web.people.ben]: the value is not a table | token_env
{AGENT}[platforms.webhook]\nroutes = 3\n | [platforms.webhook.routes]: the value is not a table | write
routes = 1\n{AGENT}{WEB} | routes is not a list of tables | [[routes]]
{AGENT}{WEB}[[routes]]\n | [routes, rule 1]: agent is missing | add agent
{AGENT}{WEB}[[routes]]\nagent = "poet"\n | [routes, rule 1]: there is no agent 'poet' | name@project
{AGENT}{WEB}[[routes]]\nagent = "human:a b"\n | [routes, rule 1]: 'human:a b' is not a known person | human:name
{AGENT}{WEB}[[routes]]\nagent = "human:ada"\nplatform = "web"\nthread = "7"\n | human:ada answers in a chat, but not in the threads of a chat | remove thread from the rule
{AGENT}{WEB}[platforms.api_server]\napi_key_env = "OTHER_KEY"\n[[routes]]\nagent = "human:ada"\n | human:ada cannot answer over api_server, whose callers wait | limit the rule to other platforms
{AGENT}{WEB}[[routes]]\nagent = "Bo@x"\nplatform = "slack"\n | [routes, rule 1]: the rule matches nothing, because slack is not connected | [platforms.slack]
{AGENT}{WEB}[[routes]]\nagent = "Bo@x"\nchat = "7"\n | add platform, because the ids | add platform
{AGENT}{WEB}[[routes]]\nagent = "Bo@x"\nmentions = "bo"\n | no setting is called 'mentions' | did you mean mention?
{AGENT}{WEB}[[routes]]\nagent = "Bo@x"\n[[routes]]\nagent = "Cy@x"\nmention = "cy"\n | [routes]: rule 2 (mention cy) can never match: rule 1 (all messages) matches first | move rule 2 before rule 1
{AGENT}{WEB}[agents.default]\n | [agents]: 'default' is not a valid agent name | main
{AGENT}{WEB}[agents.poet]\nid = 'x'\n | [agents.poet]: id is set | routes
{AGENT}{WEB}home_channel = 'x'\n | [platforms.web.home_channel]: the value is not a table | write it as
""")


@each_row("text, words, remedy", BAD)
def test_a_wrong_file_is_refused_in_words_that_lead_to_the_fault(
    home: Path, text: str, words: str, remedy: str
) -> None:
    error = refusal(home, text)
    assert words in error.message
    assert remedy in error.remedy


UNSAFE = rows(r"""
[platforms.telegram]\ntoken = "{SECRET}"\n | the file contains the secret token in plain text
[platforms.api_server]\napi_key = "{SECRET}"\n | the file contains the secret api_key in plain text
[platforms.web]\n[agent]\napi_key = "{SECRET}"\n | the file contains the secret api_key in plain text
[platforms.slack.extra]\nsigning_secret = "{SECRET}"\n | the secret signing_secret in plain text
[platforms.email]\npassword = "{SECRET}"\n | the file contains the secret password in plain text
[platforms.webhook.routes.ci]\nsecret = "{SECRET}"\n | the file contains the secret secret in plain text
[platforms.web.people.ben]\ntoken = "{SECRET}"\n | the file contains the secret token in plain text
[platforms.web]\ntoken_env = "{SECRET}"\n | token_env names a variable that is not set
[platforms.web]\ntoken_file = "{SECRET}"\n | the file that token_file names
[agent]\nbase_url = "http://u:{SECRET}@x/v1"\nmodel = "m"\n{WEB} | the password
[platforms.slack]\nproxy = "http://u:{SECRET}@x"\n | the proxy's address contains a password
[platforms.web]\ntoken_env = "A"\ntoken_file = "b"\n | are both set
[platforms.email]\ntoken_env = "CHAT_TOKEN"\npassword_env = "CHAT_TOKEN"\n | mean the same setting
[platforms.web]\ntoken_env = 7\n | token_env is not text
[platforms.web]\ntoken_env = "POSTROOM_CHAT"\n | such variables are server settings
[platforms.web]\ntoken_env = "EMPTY"\n | is not set
[platforms.web]\ntoken_env = "LINES"\n | not one line
""")


@each_row("text, words", UNSAFE)
def test_a_secret_is_never_taken_from_the_file_and_never_shown(home: Path, text: str, words: str) -> None:
    whole = text if "[agent]" in text else AGENT + text
    assert words in refusal(home, whole, EMPTY=" ", LINES=f"{SECRET}\n{SECRET}").message


@each_row(
    "content, mode, words",
    [
        (SECRET, 0o640, "can be used by other users (mode 0640)"),
        (SECRET, 0o604, "can be used by other users (mode 0604)"),
        ("", 0o600, "contains no secret"),
        (" \n", 0o600, "contains no secret"),
        ("x" * 20_000, 0o600, "contains no secret"),
        (f"{SECRET}\n{SECRET}\n", 0o600, "not one line"),
    ],
)
def test_a_file_with_a_secret_is_private_and_holds_one(
    home: Path, content: str, mode: int, words: str
) -> None:
    secret_file(home, "chat.token", content, mode)
    error = refusal(home, AGENT + '[platforms.web]\ntoken_file = "chat.token"\n')
    assert words in error.message
    assert "[platforms.web]" in error.message


REFUSED_BY_ADAPTERS = rows(r"""
[platforms.slack]\n | Slack requires a bot token | `token_env` or `token_file`
[platforms.slack]\ntoken_env = "CHAT_TOKEN"\napp_token_env = "BOT"\n | not an app token | `app_token_env` or `app_token_file`
[platforms.slack]\ntoken_env = "CHAT_TOKEN"\n | has no way to reach this server | `app_token_env`
[platforms.web]\n | no token | `token_env` or `token_file`
[platforms.web]\ntoken_env = "SHORT"\n | too short | `token_env` or `token_file`
[platforms.api_server]\n | the API key is missing | `api_key_env` or `api_key_file`
[platforms.matrix]\nbase_url = "https://m.test"\n | the access token is missing | `token_env`
[platforms.email]\naddress = "a@b.test"\nimap_host = "localhost"\nsmtp_host = "localhost"\n | password is missing | `password_env`
{MAIL}smtp_password_env = "UMLAUT"\n | smtp_password is missing | `smtp_password_env`
[platforms.telegram]\ntoken_env = "CHAT_TOKEN"\nwebhook_url = "https://x.test"\n | webhook secret is missing | `webhook_secret_env` or `webhook_secret_file`
[platforms.webhook.routes.ci]\n | the secret of a webhook is missing | `secret_env` or `secret_file`
{HOOK}callback_secret_env = "SHORT"\n | the callback_secret of a webhook is | `callback_secret_env`
{HOOK}prompt = 5\n | [platforms.webhook.routes.ci]: prompt must be a text | prompt
{HOOK}scheme = "md5"\n | scheme is 'md5': write one of postroom, github, gitlab | scheme
{HOOK}colour = 5\n | no setting is called 'colour' | secret_env, secret_file
[platforms.webhook]\n | routes is missing | add routes: a table that is not empty
[platforms.email]\npassword_env = "CHAT_TOKEN"\naddress = "a@b.test"\nimap_host = 5\nsmtp_host = 5\n | : imap_host must be a text of one line in ASCII | imap_host
[platforms.email]\npassword_env = "CHAT_TOKEN"\naddress = "a@b.test"\nuser = "localhost"\nsmtp_host = "localhost"\n | imap_host is missing | add imap_host: a text of one line
[platforms.email]\npassword_env = "CHAT_TOKEN"\naddress = "a"\nimap_host = "localhost"\nsmtp_host = "localhost"\n | `address` must be an address such as | correct address
{MAIL}imap_security = "tls"\n | : imap_security is 'tls': write one of ssl, starttls, plain | imap_
{MAIL}imap_port = "x"\n | : imap_port is 'x': write a whole number from 1 to 65535 | imap_port
{MAIL}allow_plain = 1\n | : allow_plain is '1': write true or false | allow_plain
{WEB}[platforms.web.people.xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx]\ntoken_env = "CHAT_TOKEN"\n | a name in `people` of the web channel is invalid | 64 characters
{WEB}title = 7\n | : title must be a text of 1 to 80 characters | title
[platforms.api_server]\napi_key_env = "CHAT_TOKEN"\nmodel = ""\n | model must be a text that is not empty | model
[platforms.api_server]\napi_key_env = "CHAT_TOKEN"\ntimeout_s = 0\n | timeout_s is '0': write a number from 0.1 to 86400 | timeout_s
[platforms.discord]\ntoken_env = "BOT"\nchannels = [5]\n | channels must be a list, each of it a text of digits | channels
""")


@each_row("text, words, remedy", REFUSED_BY_ADAPTERS)
def test_what_an_adapter_refuses_is_told_in_words_of_the_file(
    home: Path, text: str, words: str, remedy: str
) -> None:
    given = {"BOT": "xoxb-1", "SHORT": "short", "UMLAUT": "p\xe4ssword"}
    with pytest.raises(ConfigError) as caught:
        examine(read(home, AGENT + text, **given), Settings(data_dir=home))
    assert str(home / "gateway.toml") in caught.value.message
    assert (words in caught.value.message, remedy in caught.value.remedy) == (True, True)
    told = str(caught.value.as_dict())
    assert SECRET not in told
    assert not re.search(r"extra|`(str|int|float|bool)`|regex|\bapi_key\b", told)


def test_a_channel_may_not_take_the_address_of_the_mcp_endpoint(home: Path) -> None:
    told = read(home, AGENT + WEB)
    with pytest.raises(ConfigError, match="path /chat contains"):
        examine(told, Settings(data_dir=home, mcp_path="/chat/mcp"))
    examine(told, Settings(data_dir=home, mcp_path="/chats"))


def test_a_model_without_its_client_names_what_to_install(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = read(home, AGENT + WEB)
    monkeypatch.setitem(sys.modules, "openai", None)
    monkeypatch.delitem(sys.modules, "postroom.runtime.openai_endpoint", raising=False)
    with pytest.raises(MissingExtra) as caught:
        examine(told, Settings(data_dir=home))
    assert install_command("openai") in caught.value.remedy


@each_row("platform", ADAPTERS)
def test_a_value_of_another_type_is_refused_in_words_for_every_name(platform: Platform) -> None:
    adapter = load_adapter_class(platform)
    assert adapter.platform is platform
    place = TableName(Path("gateway.toml"), f"platforms.{platform.value}")
    secrets = {"token", "api_key", "signing_secret"}
    for name in fields_of(adapter.options).keys() - secrets:
        refused = rf"{name}(\]: the value is not a table| must be (a|an) | is '.*': write )"
        with pytest.raises(ConfigError, match=refused) as caught:
            read_table(place, {name: object()}, adapter.options, {})
        assert "None" not in caught.value.message


DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = "\n".join(
    page.read_text(encoding="utf-8")
    for page in (DOCS / "gateway.md", DOCS / "openai-api.md", *sorted((DOCS / "chats").glob("*.md")))
)
FILE = r"^(?:```toml|cat > gateway.toml <<'END')\n(\[agent\]\n.*?)^(?:```|END)$"
SHOWN = re.findall(FILE, PAGES, re.MULTILINE | re.DOTALL)
"""The whole files that the pages show."""
BOTS = {
    "telegram.token": "4711:abc",
    "slack.bot": "xoxb-1",
    "slack.app": "xapp-1",
    "discord.token": "abc.def.ghi",
}


@each_row("text", SHOWN)
def test_what_the_pages_of_chats_show_could_be_started(home: Path, text: str) -> None:
    for name in re.findall(r'_file = "(.*)"', text):
        secret_file(home, name, BOTS.get(name, f"{SECRET}-{name}"))
    told = read(home, text)
    examine(told, Settings(data_dir=home))
    assert len(told.gateway.get_connected_platforms()) == 1


def test_the_pages_of_chats_show_every_platform_and_every_name() -> None:
    tables = [AgentConfig, GatewayRules, DeliveryConfig, PairingRules, Route, StreamingConfig]
    for platform in ADAPTERS:
        assert f"[platforms.{platform.value}" in "".join(SHOWN)
        tables.append(load_adapter_class(platform).options)
    for kind in tables:
        assert [name for name in (*fields_of(kind), *kind.ALSO) if name not in PAGES] == []
