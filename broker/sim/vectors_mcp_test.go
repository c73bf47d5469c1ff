package sim

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestInitialize(t *testing.T) {
	var file struct {
		Cases []struct{ Name, Request, Reply string }
	}
	load(t, "initialize.json", &file)
	for _, c := range file.Cases {
		t.Run(c.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := vectorDevice(t)
				s := attach(t, d)
				d.session.id = value(c.Reply).field("session_id").text()
				s.send(c.Request)
				if diff := cmp.Diff(c.Reply, s.reply()); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// vectorTools converts the objects of a tools/list result to tools.
func vectorTools(t *testing.T, replies ...string) (tools []*tool) {
	t.Helper()
	for _, reply := range replies {
		var list []json.RawMessage
		if err := json.Unmarshal(value(reply).field("payload").field("result").field("tools"), &list); err != nil {
			t.Fatal(err)
		}
		for _, text := range list {
			tools = append(tools, vectorTool(value(text)))
		}
	}
	return tools
}

func vectorTool(v value) *tool {
	t := &tool{name: v.field("name").text(), description: v.field("description").text(),
		userOnly: v.field("annotations") != nil}
	for key, schema := range v.field("inputSchema").field("properties").members() {
		p := param{name: key.text(), ranged: schema.field("minimum") != nil}
		def := schema.field("default")
		p.optional = def != nil
		switch schema.field("type").text() {
		case "boolean":
			p.kind, p.def.b = boolean, def.isTrue()
		case "integer":
			p.kind, p.def.i = integer, def.number()
			p.min, p.max = schema.field("minimum").number(), schema.field("maximum").number()
		case "string":
			p.kind, p.def.s = text, def.text()
		}
		t.params = append(t.params, p)
	}
	return t
}

func TestToolsList(t *testing.T) {
	var file struct {
		Cases []struct {
			Name  string
			Pages []struct{ Request, Reply string }
		}
	}
	load(t, "tools_list_paged.json", &file)
	all := file.Cases[0].Pages
	for _, c := range file.Cases {
		if strings.HasPrefix(c.Name, "HOSTILE") {
			continue // no stock device does that
		}
		t.Run(c.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tools := vectorTools(t, all[0].Reply, all[1].Reply, all[2].Reply)
				if strings.HasPrefix(c.Name, "single page") {
					tools = vectorTools(t, c.Pages[0].Reply)
				}
				tools = append(tools, &tool{name: "self.demo.huge", description: strings.Repeat("x", 8000),
					userOnly: strings.HasPrefix(c.Name, "single")})
				if !strings.HasPrefix(c.Name, "one tool") {
					tools = tools[:len(tools)-1]
				}
				s := attach(t, vectorDevice(t, tools...))
				for _, p := range c.Pages {
					s.send(p.Request)
					if diff := cmp.Diff(p.Reply, s.reply()); diff != "" {
						t.Error(diff)
					}
				}
			})
		})
	}
}

// demoTools are the tools that only the vectors have.
func demoTools() []*tool {
	answer := func(r result) func(context.Context, *Device, []argument) (result, error) {
		return func(context.Context, *Device, []argument) (result, error) { return r, nil }
	}
	picture, _ := base64.StdEncoding.DecodeString("/9j/4AAQSkZJRgABAQAAAQABAAD/2Q==")
	return []*tool{
		{name: "self.demo.count", run: answer(result{text: "42"})},
		{name: "self.demo.capture", run: answer(result{image: picture})},
		{name: "self.demo.say", run: answer(result{text: "温度 21°C \"ok\"\nline2"})},
	}
}

func TestToolsCall(t *testing.T) {
	var file struct {
		Cases []struct {
			Name, Request string
			Reply         *string
		}
	}
	load(t, "tools_call.json", &file)
	other := map[string]string{
		"image, standard MCP form (accept too)":        "other firmware",
		"upgrade on firmware <= 2.0.x: early true":     "other firmware",
		"upgrade succeeded: never answered (>= 2.1.0)": "TestUpgrade",
	}
	for _, c := range file.Cases {
		t.Run(c.Name, func(t *testing.T) {
			if why := other[c.Name]; why != "" {
				t.Skip(why)
			}
			synctest.Test(t, func(t *testing.T) {
				d := vectorDevice(t)
				rich := *d.board
				rich.backlight, rich.battery, rich.own = true, true, demoTools()
				d.board = rich.equip()
				d.fleet.http.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
					if r.Body != nil {
						_, _ = io.Copy(io.Discard, r.Body)
					}
					return &http.Response{StatusCode: 403, Body: http.NoBody, Request: r}, nil
				})
				s := attach(t, d)
				want := ""
				if c.Reply != nil {
					want = *c.Reply
					d.session.id = value(want).field("session_id").text()
				}
				started := time.Now()
				s.send(c.Request)
				got := s.reply()
				if got == "" {
					time.Sleep(10 * time.Second)
					got = s.reply()
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Error(diff)
				}
				if strings.HasPrefix(c.Name, "upgrade FAILED") && time.Since(started) < 7*time.Second {
					t.Error("the late answer came early")
				}
			})
		})
	}
}

func TestMalformedRequests(t *testing.T) {
	var file struct {
		Down []struct{ Name, Wire, Device string }
	}
	load(t, "malformed.json", &file)
	var calm struct {
		Cases []struct{ Name, Dir, Wire string }
	}
	load(t, "notification.json", &calm)
	for _, c := range calm.Cases {
		if c.Dir == "down" {
			file.Down = append(file.Down, struct{ Name, Wire, Device string }{c.Name, c.Wire, "silent"})
		}
	}
	for _, c := range file.Down {
		t.Run(c.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := vectorDevice(t)
				s := attach(t, d)
				s.send(c.Wire)
				checkMalformed(t, c.Device, s.reply())
				s.send(`{"type":"mcp","payload":{"jsonrpc":"2.0","id":5,"method":"ping"}}`)
				if s.reply() == "" {
					t.Error("the device is deaf now")
				}
			})
		})
	}
}

func checkMalformed(t *testing.T, want, reply string) {
	t.Helper()
	payload := value(reply).field("payload")
	switch want {
	case "silent":
		if reply != "" {
			t.Errorf("answered %s", reply)
		}
	case "replies with id 2147483647":
		if payload.field("id").number() != 2147483647 {
			t.Errorf("answered %s", reply)
		}
	case "replies with id 7":
		if string(payload.field("id")) != "7" {
			t.Errorf("answered %s", reply)
		}
	case "lists without user tools":
		if payload.field("result") == nil || strings.Contains(reply, "self.reboot") {
			t.Errorf("answered %s", reply)
		}
	default:
		t.Fatalf("the test does not know the behaviour %q", want)
	}
}

func TestHello(t *testing.T) {
	var file struct {
		Cases []struct {
			Name, Dir, Transport, Wire string
			Session                    string `json:"device_session_id"`
			Expect                     map[string]any
		}
	}
	load(t, "hello.json", &file)
	for _, c := range file.Cases {
		if c.Dir != "down" || c.Transport != "mqtt" {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := vectorDevice(t)
				s := attach(t, d)
				if strings.HasPrefix(c.Name, "server hello") {
					d.Talk()
					if hello := s.reply(); !strings.Contains(hello, `"type":"hello"`) {
						t.Fatalf("device said %s", hello)
					}
				} else {
					d.session = conversation{id: c.Session, open: true}
				}
				s.send(c.Wire)
				answer := s.reply()
				if want, ok := c.Expect["device_accepts"]; ok && d.Talking() != want {
					t.Errorf("channel open: %v", d.Talking())
				}
				if want, ok := c.Expect["device_closes_channel"]; ok && d.Talking() == want {
					t.Errorf("channel open: %v", d.Talking())
				}
				if want, ok := c.Expect["device_shows"]; ok && (d.State().Message != "") != want {
					t.Errorf("device shows %q", d.State().Message)
				}
				if strings.Contains(answer, "goodbye") {
					t.Errorf("device said %s", answer)
				}
				if c.Expect["device_reboots"] == true {
					time.Sleep(3 * time.Second)
					synctest.Wait()
					if d.fleet.Stats().Reboots != 1 {
						t.Error("device did not restart")
					}
				}
			})
		})
	}
}
