package main

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Dependencies point to fleet. Each rule names a package that another must not
// depend on, and the reason.
var unwanted = []struct{ from, to, why string }{
	{"fleetd/fleet", "fleetd/broker", "the domain states what it needs as fleet.Link"},
	{"fleetd/fleet", "fleetd/fleet/postgres", "the domain states what it needs as store interfaces"},
	{"fleetd/fleet", "fleetd/mcp", "the wire's words are translated in broker alone"},
	{"fleetd/fleet", "fleetd/web", "the domain knows no pages"},
	{"fleetd/fleet", "github.com/jackc/pgx/v5", "SQL lives in fleet/postgres"},
	{"fleetd/fleet", "github.com/mochi-mqtt/server/v2", "MQTT lives in broker"},
	{"fleetd/fleet", "fleetd/fleet/enrolment", "the core is what all subjects share, and imports none"},
	{"fleetd/fleet", "fleetd/fleet/firmware", "the core is what all subjects share, and imports none"},
	{"fleetd/fleet", "fleetd/fleet/campaign", "the core is what all subjects share, and imports none"},
	{"fleetd/fleet", "fleetd/fleet/telemetry", "the core is what all subjects share, and imports none"},
	{"fleetd/fleet", "fleetd/fleet/policy", "the core is what all subjects share, and imports none"},
	{"fleetd/fleet", "fleetd/fleet/call", "the core is what all subjects share, and imports none"},
	{"fleetd/fleet", "fleetd/fleet/operator", "the core is what all subjects share, and imports none"},
	{"fleetd/fleet", "fleetd/fleet/upstream", "the core is what all subjects share, and imports none"},
	{"fleetd/fleet", "fleetd/fleet/picture", "the core is what all subjects share, and imports none"},
	{"fleetd/fleet", "fleetd/fleet/audit", "the core is what all subjects share, and imports none"},
	{"fleetd/fleet", "fleetd/fleet/system", "the core is what all subjects share, and imports none"},
	{"fleetd/fleet", "fleetd/fleet/webhook", "the core is what all subjects share, and imports none"},
	{"fleetd/fleet", "fleetd/fleet/publish", "the core is what all subjects share, and imports none"},
	{"fleetd/fleet", "fleetd/fleet/logstream", "the core is what all subjects share, and imports none"},
	{"fleetd/fleet", "fleetd/fleet/rollout", "the core is what all subjects share, and imports none"},
	{"fleetd/fleet", "fleetd/fleet/blobs", "the core is what all subjects share, and imports none"},
	{"fleetd/fleet", "fleetd/fleet/mail", "the core is what all subjects share, and imports none"},
	{"fleetd/fleet/call", "fleetd/fleet/policy", "the gate asks call.Policy and call.Pins; rules know calls"},
	{"fleetd/fleet/call", "fleetd/fleet/operator", "a call knows its principal, not how the principal signed in"},
	{"fleetd/fleet/call", "fleetd/fleet/campaign", "calls are made alike with or without a campaign"},
	{"fleetd/fleet/call", "fleetd/fleet/picture", "the call asks call.URLMaker for an address"},
	{"fleetd/fleet/call", "fleetd/fleet/upstream", "calls wait for conversations, whoever relays them"},
	{"fleetd/fleet/call", "fleetd/broker", "calls are delivered by fleet.Link"},
	{"fleetd/fleet/call", "fleetd/fleet/postgres", "calls are kept by call.Store"},
	{"fleetd/fleet/call", "fleetd/mcp", "the wire's words are translated in broker alone"},
	{"fleetd/fleet/call", "github.com/jackc/pgx/v5", "SQL lives in fleet/postgres"},
	{"fleetd/fleet/operator", "fleetd/fleet/call", "people exist without calls"},
	{"fleetd/fleet/operator", "fleetd/web", "sign-in is a rule; cookies are web/console's"},
	{"fleetd/fleet/operator", "fleetd/fleet/postgres", "siblings meet in cmd/fleetd/server"},
	{"fleetd/fleet/upstream", "fleetd/broker", "it chooses a voice server and opens no connection"},
	{"fleetd/fleet/upstream", "fleetd/fleet/call", "a voice server is chosen before any call"},
	{"fleetd/fleet/upstream", "fleetd/fleet/enrolment", "a voice server is chosen for a device, however it joined"},
	{"fleetd/fleet", "fleetd/fleet/plugin", "the core is what all subjects share, and imports none"},
	{"fleetd/fleet", "fleetd/fleet/endpoint", "the core is what all subjects share, and imports none"},
	{"fleetd/fleet/endpoint", "fleetd/mcp", "it defines endpoints; mcp/host speaks to them"},
	{"fleetd/fleet/endpoint", "fleetd/fleet/postgres", "siblings meet in cmd/fleetd/server"},
	{"fleetd/fleet/plugin", "fleetd/mcp", "it defines plug-ins; mcp/host speaks to them"},
	{"fleetd/fleet/plugin", "fleetd/internal/program", "it defines programs, and a plugin.Runner runs them"},
	{"fleetd/fleet/plugin", "fleetd/fleet/postgres", "siblings meet in cmd/fleetd/server"},
	{"fleetd/fleet/answer", "fleetd/broker", "an answer means the same, whatever carries it"},
	{"fleetd/mcp/host", "fleetd/broker", "siblings meet in cmd/fleetd/server"},
	{"fleetd/mcp/host", "fleetd/fleet/postgres", "it states what it needs as host.Devices"},
	{"fleetd/mcp/host", "fleetd/web", "siblings meet in cmd/fleetd/server"},
	{"fleetd/internal/program", "fleetd/", "a program with limits is no plug-in yet"},
	{"fleetd/fleet/picture", "fleetd/fleet/call", "a picture names its call, and does not make it"},
	{"fleetd/fleet/picture", "fleetd/fleet/postgres", "siblings meet in cmd/fleetd/server"},
	{"fleetd/fleet/audit", "fleetd/fleet/call", "calls have records of their own"},
	{"fleetd/fleet/audit", "fleetd/fleet/postgres", "siblings meet in cmd/fleetd/server"},
	{"fleetd/fleet/system", "fleetd/", "it describes the program, not the fleet in it"},
	{"fleetd/fleet/webhook", "fleetd/web", "a webhook carries codes; its texts are made by its receiver"},
	{"fleetd/fleet/webhook", "fleetd/fleet/campaign", "a webhook names a campaign, and knows no more of it"},
	{"fleetd/fleet/mail", "fleetd/", "a mail is text and addresses"},
	{"fleetd/fleet", "fleetd/fleet/schedule", "the core is what all subjects share, and imports none"},
	{"fleetd/fleet/call", "fleetd/fleet/schedule", "a call is made alike, whatever starts it"},
	{"fleetd/fleet/schedule", "fleetd/fleet/postgres", "siblings meet in cmd/fleetd/server"},
	{"fleetd/fleet", "fleetd/fleet/history", "the core is what all subjects share, and imports none"},
	{"fleetd/fleet/history", "fleetd/fleet/postgres", "siblings meet in cmd/fleetd/server"},
	{"fleetd/fleet/schedule", "fleetd/fleet/campaign", "a schedule calls tools; campaigns bring firmware"},
	{"fleetd/fleet/rollout", "fleetd/broker", "the engine reaches devices through rollout.Link and calls"},
	{"fleetd/fleet/rollout", "fleetd/fleet/postgres", "siblings meet in cmd/fleetd/server"},
	{"fleetd/fleet/rollout", "fleetd/web", "the engine serves no page"},
	{"fleetd/fleet", "fleetd/fleet/authority", "the core states what it needs as fleet.Authority"},
	{"fleetd/fleet/authority", "fleetd/fleet/campaign", "it knows rights, not what is done with them"},
	{"fleetd/fleet/authority", "fleetd/fleet/postgres", "siblings meet in cmd/fleetd/server"},
	{"fleetd/fleet", "fleetd/fleet/alert", "the core is what all subjects share, and imports none"},
	{"fleetd/fleet/alert", "fleetd/fleet/campaign", "an alert names a campaign, and knows no more of it"},
	{"fleetd/fleet/alert", "fleetd/fleet/telemetry", "it asks the records, not the devices"},
	{"fleetd/fleet/policy", "fleetd/fleet/campaign", "calls are judged alike with or without a campaign"},
	{"fleetd/fleet/policy", "fleetd/fleet/enrolment", "a rule knows devices, not how they joined"},
	{"fleetd/fleet/policy", "fleetd/fleet/firmware", "a rule knows devices, not their images"},
	{"fleetd/fleet/enrolment", "fleetd/fleet/firmware", "who may join does not depend on what is installed"},
	{"fleetd/fleet/enrolment", "fleetd/fleet/campaign", "who may join does not depend on campaigns"},
	{"fleetd/fleet/enrolment", "fleetd/fleet/telemetry", "who may join does not depend on what devices report"},
	{"fleetd/fleet/firmware", "fleetd/fleet/campaign", "an image fits a device with or without a campaign"},
	{"fleetd/fleet/firmware", "fleetd/fleet/enrolment", "images know devices, not how they joined"},
	{"fleetd/fleet/firmware", "fleetd/fleet/telemetry", "images know devices, not their reports"},
	{"fleetd/fleet/telemetry", "fleetd/fleet/campaign", "reports are kept with or without a campaign"},
	{"fleetd/fleet/telemetry", "fleetd/fleet/firmware", "a core dump names its build by hash"},
	{"fleetd/fleet/telemetry", "fleetd/fleet/enrolment", "only enrolled devices report"},
	{"fleetd/fleet/campaign", "fleetd/fleet/rollout", "the engine drives campaigns; they do not know it"},
	{"fleetd/fleet/campaign", "fleetd/fleet/enrolment", "campaigns know devices, not how they joined"},
	{"fleetd/fleet/cluster", "fleetd/internal/bus", "it describes nodes; broker/cluster carries their beats"},
	{"fleetd/fleet/cluster", "fleetd/broker", "it describes nodes; broker/cluster carries their beats"},
	{"fleetd/fleet", "fleetd/fleet/cluster", "the core is what all subjects share, and imports none"},
	{"fleetd/fleet/lease", "fleetd/", "who serves a database does not depend on the fleet in it"},
	{"fleetd/fleet/lease", "github.com/jackc/pgx/v5", "SQL lives in fleet/postgres"},
	{"fleetd/fleet/outbound", "fleetd/", "whether an address may be reached does not depend on the fleet"},
	{"fleetd/fleet/sheet", "fleetd/", "a file format knows no fleet"},
	{"fleetd/fleet/espimage", "fleetd/", "a byte format knows no fleet"},
	{"fleetd/fleet/espimage", "github.com/", "a byte format needs the standard library alone"},
	{"fleetd/fleet/redact", "fleetd/", "it works on bytes and knows no fleet"},
	{"fleetd/mcp", "fleetd/fleet", "mcp is a protocol and knows no fleet"},
	{"fleetd/mcp", "github.com/", "mcp needs the standard library alone"},
	{"fleetd/internal/bounded", "fleetd/", "a cache knows no content"},
	{"fleetd/internal/bus", "fleetd/", "it carries messages, and knows none"},
	{"fleetd/internal/jsonscan", "fleetd/", "a scanner of JSON knows no message"},
	{"fleetd/internal/jsonscan", "github.com/", "a scanner of JSON needs the standard library alone"},
	{"fleetd/fleet/outcome", "fleetd/web", "the table is also that of MCP, which has no pages"},
	{"fleetd/fleet/outcome", "fleetd/mcp", "the table is also that of REST, which has no messages"},
	{"fleetd/fleet", "fleetd/fleet/outcome", "the core knows kinds of failure, not their status in HTTP"},
	{"fleetd/mcp/gateway", "fleetd/mcp", "it speaks MCP to clients with the SDK; fleetd/mcp is for devices"},
	{"fleetd/mcp/gateway", "fleetd/broker", "calls go through the gate of package fleet"},
	{"fleetd/mcp/gateway", "fleetd/web", "siblings meet in cmd/fleetd/server"},
	{"fleetd/mcp/gateway", "fleetd/fleet/postgres", "siblings meet in cmd/fleetd/server"},
	{"fleetd/mcp/gateway", "fleetd/fleet/rollout", "campaigns are planned here, and carried out elsewhere"},
	{"fleetd/mcp/gateway", "fleetd/fleet/enrolment", "models do not decide who may join"},
	{"fleetd/cmd/fleetd/client", "fleetd/mcp/gateway", "a client is no server"},
	{"fleetd/broker", "fleetd/web", "siblings meet in cmd/fleetd/server"},
	{"fleetd/broker", "fleetd/fleet/postgres", "siblings meet in cmd/fleetd/server"},
	{"fleetd/broker", "fleetd/broker/edge", "edge and core know each other through broker/link"},
	{"fleetd/broker", "github.com/mochi-mqtt/server/v2", "the core does not know what carries messages"},
	{"fleetd/broker/edge", "fleetd/fleet/postgres", "an edge has no database"},
	{"fleetd/broker/edge", "fleetd/broker/voice", "the edge states what it needs as edge.Voice"},
	{"fleetd/broker/edge", "fleetd/broker/agent", "the edge states what it needs as edge.Agents"},
	{"fleetd/broker/agent", "fleetd/mcp/gateway", "siblings meet in cmd/fleetd/server"},
	{"fleetd/broker/agent", "fleetd/fleet/postgres", "siblings meet in cmd/fleetd/server"},
	{"fleetd/broker/feed", "fleetd/fleet/postgres", "siblings meet in cmd/fleetd/server"},
	{"fleetd/broker/feed", "fleetd/broker/edge", "its clients are programs, and reach devices by calls alone"},
	{"fleetd/broker/feed", "fleetd/broker/link", "its clients are programs, and reach devices by calls alone"},
	{"fleetd/broker/dialect", "fleetd/broker", "it says what devices mean; the broker carries it"},
	{"fleetd/broker/dialect", "github.com/mochi-mqtt/server/v2", "it knows topics and payloads, not what carries them"},
	{"fleetd/broker/dialect", "github.com/gorilla/websocket", "it knows topics and payloads, not what carries them"},
	{"fleetd/broker/voice", "fleetd/web", "a failure is a code; its text is made in cmd/fleetd/server"},
	{"fleetd/broker/voice", "fleetd/fleet/postgres", "siblings meet in cmd/fleetd/server"},
	{"fleetd/broker/voice/voicetest", "fleetd/", "a fake that shares the relay's code hides its mistakes"},
	{"fleetd/web", "fleetd/broker", "siblings meet in cmd/fleetd/server"},
	{"fleetd/web", "fleetd/mcp", "the frame mounts a handler, and knows no message"},
	{"fleetd/web", "fleetd/fleet/postgres", "siblings meet in cmd/fleetd/server"},
	{"fleetd/web", "fleetd/web/console", "the frame mounts routes, and knows no page"},
	{"fleetd/web", "fleetd/web/api", "the frame mounts a handler, and knows no operation"},
	{"fleetd/web", "fleetd/web/device", "the frame mounts routes, and knows no device"},
	{"fleetd/web/request", "fleetd/", "what every request has does not depend on what it asks"},
	{"fleetd/web/door", "fleetd/web/console", "an edge passes requests on, and knows no page"},
	{"fleetd/web/door", "fleetd/web/api", "an edge passes requests on, and knows no operation"},
	{"fleetd/web/door", "fleetd/broker", "siblings meet in cmd/fleetd/server"},
	{"fleetd/web/door", "fleetd/fleet/postgres", "an edge has no database"},
	{"fleetd/web/door", "github.com/nats-io/nats.go", "whoever hears the cluster's beats announces the leader"},
	{"fleetd/web/console", "fleetd/web/api", "pages and REST are two doors to the same services"},
	{"fleetd/web/console", "fleetd/broker", "siblings meet in cmd/fleetd/server"},
	{"fleetd/web/console", "fleetd/mcp", "pages show fleet's words"},
	{"fleetd/web/console", "fleetd/fleet/postgres", "siblings meet in cmd/fleetd/server"},
	{"fleetd/web/console/pages", "fleetd/web/console", "every room uses it, so it knows none"},
	{"fleetd/web/console/calls", "fleetd/web/console/device", "a device's pages show calls; a call's page links to the device"},
	{"fleetd/web/console/calls", "fleetd/web/console/devices", "a device's pages show calls; a call's page links to the device"},
	{"fleetd/web/console/calls", "fleetd/web/console/releases", "a device's pages show calls; a call's page links to the device"},
	{"fleetd/web/console/calls", "fleetd/web/console/record", "a device's pages show calls; a call's page links to the device"},
	{"fleetd/web/console/calls", "fleetd/web/console/settings", "a device's pages show calls; a call's page links to the device"},
	{"fleetd/web/console/record", "fleetd/web/console/calls", "what happened is shown from records, whatever it was"},
	{"fleetd/web/console/record", "fleetd/web/console/device", "what happened is shown from records, whatever it was"},
	{"fleetd/web/console/record", "fleetd/web/console/devices", "what happened is shown from records, whatever it was"},
	{"fleetd/web/console/record", "fleetd/web/console/releases", "what happened is shown from records, whatever it was"},
	{"fleetd/web/console/record", "fleetd/web/console/settings", "what happened is shown from records, whatever it was"},
	{"fleetd/web/console/settings", "fleetd/web/console/calls", "what administrators set up is used elsewhere, and shown alone"},
	{"fleetd/web/console/settings", "fleetd/web/console/device", "what administrators set up is used elsewhere, and shown alone"},
	{"fleetd/web/console/settings", "fleetd/web/console/devices", "what administrators set up is used elsewhere, and shown alone"},
	{"fleetd/web/console/settings", "fleetd/web/console/releases", "what administrators set up is used elsewhere, and shown alone"},
	{"fleetd/web/console/settings", "fleetd/web/console/record", "what administrators set up is used elsewhere, and shown alone"},
	{"fleetd/web/console/device", "fleetd/web/console/devices", "one device's pages do not depend on how it is listed or updated"},
	{"fleetd/web/console/device", "fleetd/web/console/releases", "one device's pages do not depend on how it is listed or updated"},
	{"fleetd/web/console/device", "fleetd/web/console/record", "one device's pages do not depend on how it is listed or updated"},
	{"fleetd/web/console/device", "fleetd/web/console/settings", "one device's pages do not depend on how it is listed or updated"},
	{"fleetd/web/console/devices", "fleetd/web/console/releases", "devices join and are listed before anything updates them"},
	{"fleetd/web/console/devices", "fleetd/web/console/record", "devices join and are listed before anything updates them"},
	{"fleetd/web/console/devices", "fleetd/web/console/settings", "devices join and are listed before anything updates them"},
	{"fleetd/web/console/releases", "fleetd/web/console/settings", "firmware does not depend on what administrators set up"},
	{"fleetd/web/device", "fleetd/web/console", "devices see no page"},
	{"fleetd/web/device", "fleetd/fleet/postgres", "siblings meet in cmd/fleetd/server"},
	{"fleetd/web/api", "fleetd/web/console", "pages and REST are two doors to the same services"},
	{"fleetd/web/api", "fleetd/fleet/postgres", "siblings meet in cmd/fleetd/server"},
	{"fleetd/cmd/fleetd/bridge", "fleetd/fleet", "it carries messages, and knows no fleet"},
	{"fleetd/cmd/fleetd/bridge", "fleetd/cmd/fleetd/client", "it speaks MCP, not REST"},
	{"fleetd/cmd/fleetd/bridge", "fleetd/cmd/fleetd/server", "a client reaches the server over its address alone"},
	{"fleetd/fleet/attempts", "fleetd/fleet", "it counts, and knows no operator and no device"},
	{"fleetd/fleet/attempts", "fleetd/web", "it counts, and knows no cookie and no HTTP"},
	{"fleetd/web/api", "fleetd/web/ui", "REST has no looks"},
	{"fleetd/web/ui", "github.com/jackc/pgx/v5", "components take view structs, never a store"},
	{"fleetd/web/forms", "fleetd/web/ui", "what a form holds does not depend on how it looks"},
	{"fleetd/web/forms", "fleetd/web/i18n", "a problem is the key of a message; pages make its text"},
	{"fleetd/broker/sim", "fleetd/", "a simulator that shares the server's code hides its mistakes"},
	{"fleetd/broker/sim/mqtt5", "fleetd/", "a simulator that shares the server's code hides its mistakes"},
	{"fleetd/broker/sim/mqtt5", "github.com/mochi-mqtt/server/v2", "a simulator with the server's codec hides its mistakes"},
	{"fleetd/fleet/postgres", "fleetd/web", "siblings meet in cmd/fleetd/server"},
	{"fleetd/fleet/postgres", "fleetd/broker", "siblings meet in cmd/fleetd/server"},
	{"fleetd/cmd/fleetd/server", "fleetd/cmd/fleetd/client", "a server does not call itself over REST"},
	{"fleetd/cmd/fleetd/client", "fleetd/cmd/fleetd/server", "a client reaches the server over REST alone"},
	{"fleetd/cmd/fleetd/client", "fleetd/broker", "a client reaches devices over REST alone"},
	{"fleetd/cmd/fleetd/client", "fleetd/fleet/postgres", "a client reaches the records over REST alone"},
	{"fleetd/cmd/fleetd/client", "fleetd/web/ui", "a client prints, and shows no pages"},
	{"fleetd/cmd/fleetd/client", "fleetd/web/device", "a client is no device"},
}

func TestDependenciesPointToFleet(t *testing.T) {
	out, err := exec.Command("go", "list", "-json=ImportPath,Deps", "fleetd/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for dec := json.NewDecoder(strings.NewReader(string(out))); dec.More(); {
		var p struct {
			ImportPath string
			Deps       []string
		}
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		for _, rule := range unwanted {
			if p.ImportPath != rule.from {
				continue
			}
			for _, dep := range p.Deps {
				if dep == rule.to || strings.HasPrefix(dep, strings.TrimSuffix(rule.to, "/")+"/") {
					t.Errorf("%s imports %s: %s", p.ImportPath, dep, rule.why)
				}
			}
		}
	}
}

// fleet/outbound checks the connections that the server makes on request. Each
// file that dials without it is listed here with the reason.
var dialsOtherwise = map[string]string{
	"fleet/outbound/outbound.go":    "it is the guard",
	"fleet/mail/mail.go":            "the mail server is named at the start, by who can start any program",
	"broker/voice/upstream.go":      "its dialer is the guard's",
	"web/door/leader.go":            "the leader's address, which cores of the cluster announce; mutual TLS",
	"web/device/vision_upstream.go": "the addresses of voice servers; its dialer is the guard's",
	"fleet/webhook/service.go":      "its dialer is the guard's",
	"fleet/logstream/receiver.go":   "its dialer is the guard's",
	"fleet/publish/places.go":       "its dialer is the guard's",
	"cmd/fleetd/server/plugins.go":  "its dialer is the guard's",
	"fleet/blobs/s3.go":             "the endpoint is named at the start, by who can start any program",
	"broker/voice/accounts.go":      "its dialer is the guard's",
	"broker/sim/audio.go":           "a simulated device, not the server",
	"broker/sim/mqtt5/conn.go":      "a simulated device, not the server",
	"broker/sim/socket.go":          "a simulated device, not the server",
	"broker/sim/web.go":             "a simulated device, not the server",
}

var dials = regexp.MustCompile(`net\.Dialer|net\.Dial\(|net\.DialTimeout|websocket\.DefaultDialer|websocket\.Dialer\{|` +
	`http\.(Client\{|DefaultClient|DefaultTransport|Transport\{|Get\(|Post\(|PostForm\(|Head\()|smtp\.`)

func TestOutgoingConnectionsAreGuarded(t *testing.T) {
	root := filepath.Join("..", "..")
	seen := make(map[string]bool)
	for _, dir := range []string{"fleet", "broker", "web", "mcp", "cmd/fleetd/server"} {
		err := fs.WalkDir(os.DirFS(root), dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
				strings.Contains(path, "/voicetest/") || strings.Contains(path, "/pgtest/") {
				return err
			}
			text, err := os.ReadFile(filepath.Join(root, path))
			if err != nil || !dials.Match(text) {
				return err
			}
			if seen[path] = true; dialsOtherwise[path] == "" {
				t.Errorf("%s opens connections (%s): use a guard of fleet/outbound", path, dials.Find(text))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for path := range dialsOtherwise {
		if !seen[path] {
			t.Errorf("%s opens no connection any more: remove it from the list", path)
		}
	}
}
