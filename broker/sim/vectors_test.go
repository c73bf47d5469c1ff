package sim

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
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

// vectorTools makes tools of the objects in a tools/list result.
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
	t := &tool{name: v.field("name").text(), description: v.field("description").text(), userOnly: v.field("annotations") != nil}
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
				tools = append(tools, &tool{name: "self.demo.huge", description: strings.Repeat("x", 8000), userOnly: strings.HasPrefix(c.Name, "single")})
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

// demoTools are those that only the vectors have.
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

func TestSystemInfo(t *testing.T) {
	var file struct {
		Requests []struct {
			Name, Body string
			Headers    map[string]string
		}
	}
	load(t, "ota_check.json", &file)
	prepare := map[string]func(*Device){
		"known board, idle":         func(*Device) {},
		"4G board, csq is a string": func(d *Device) { d.link.network, d.link.csq = cellular, 21 },
		"SSID with quote: body is NOT valid JSON, answer 200 from the headers": func(d *Device) { d.link.ssid = `Bob"s net` },
		"eFuse serial number": func(d *Device) { d.id.serial = "SN-0123456789ABCDEF0123456789AB-" },
	}
	for _, c := range file.Requests {
		if prepare[c.Name] == nil {
			continue
		}
		delete(c.Headers, "Host")
		t.Run(c.Name, func(t *testing.T) {
			d := vectorDevice(t)
			running := *d.flash.slots[0].build
			running.elf = "9f2c4d6b8a01c3e5f7091b2d4f60718293a4b5c6d7e8f90a1b2c3d4e5f607101"
			d.flash.slots[0].build = &running
			prepare[c.Name](d)
			d.fleet.http.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
				body, _ := io.ReadAll(r.Body)
				if diff := cmp.Diff(c.Body, string(body)); diff != "" {
					t.Error(diff)
				}
				got := map[string]string{}
				for k := range r.Header {
					got[k] = r.Header.Get(k)
				}
				if diff := cmp.Diff(c.Headers, got); diff != "" {
					t.Error(diff)
				}
				return nil, errors.New("enough")
			})
			if _, err := d.poll(t.Context()); err == nil {
				t.Error("poll without an answer succeeded")
			}
		})
	}
}

func TestOTAAnswers(t *testing.T) {
	var file struct {
		Responses []struct {
			Name, Body string
			Expect     struct {
				Crash bool `json:"backend_must_not_send"`
			}
		}
	}
	load(t, "ota_check.json", &file)
	for _, c := range file.Responses {
		t.Run(c.Name, func(t *testing.T) {
			d := vectorDevice(t)
			saw, err := d.take(value(c.Body))
			if err == nil {
				_, _, err = parseEndpoint(d.nvs.endpoint)
			}
			if fatal(err) != c.Expect.Crash {
				t.Fatalf("error %v, want a crash: %v", err, c.Expect.Crash)
			}
			if due := strings.HasPrefix(c.Name, "upgrade due") || strings.HasPrefix(c.Name, "forced"); due != (saw.upgrade != "") {
				t.Errorf("upgrades from %q", saw.upgrade)
			}
			if strings.HasPrefix(c.Name, "unclaimed") && (saw.code != "482913" || saw.challenge != "f3b0c2d4e5") {
				t.Errorf("code %q, challenge %q", saw.code, saw.challenge)
			}
		})
	}
}

func TestVersionCompare(t *testing.T) {
	var file struct {
		Pairs []struct {
			Current, Offered string
			Newer            bool
		} `json:"version_compare"`
	}
	load(t, "ota_check.json", &file)
	for _, c := range file.Pairs {
		if got, err := newerVersion(c.Current, c.Offered); err != nil || got != c.Newer {
			t.Errorf("newerVersion(%q, %q) = %v, %v, want %v", c.Current, c.Offered, got, err, c.Newer)
		}
	}
	for _, bad := range []string{"v2.4.3", "latest", "2..4", "20260808120000", ".1", "-"} {
		if _, err := newerVersion("2.4.2", bad); err == nil {
			t.Errorf("version %q does not throw", bad)
		}
	}
}

func TestActivationBody(t *testing.T) {
	var file struct {
		Activate []struct{ Name, Body string }
	}
	load(t, "ota_check.json", &file)
	d := vectorDevice(t)
	if got := d.activationBody("x"); got != file.Activate[0].Body {
		t.Errorf("without serial number: %s", got)
	}
	d.id.serial = "SN-0123456789ABCDEF0123456789AB-"
	want := value(file.Activate[1].Body)
	if got := signedActivation(d.id.serial, "f3b0c2d4e5", bytes.Repeat([]byte{0x11}, 32)); got != string(want) {
		t.Errorf("got %s, want %s", got, want)
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
					if d.Stats().Reboots != 1 {
						t.Error("device did not restart")
					}
				}
			})
		})
	}
}

func (d *Device) Stats() Stats { return d.fleet.Stats() }

func TestUploads(t *testing.T) {
	var file struct {
		Cases []struct {
			Name, Method string
			Headers      map[string]string
			Body         []byte `json:"body_base64"`
		}
	}
	load(t, "http_uploads.json", &file)
	picture := []byte("\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00\xff\xd9")
	for _, c := range file.Cases[:2] {
		t.Run(c.Name, func(t *testing.T) {
			start := bytes.Index(c.Body, []byte("\xff\xd8"))
			picture = c.Body[start : bytes.Index(c.Body, []byte("\xff\xd9"))+2]
			d := vectorDevice(t)
			d.fleet.http.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
				body, _ := io.ReadAll(r.Body)
				if diff := cmp.Diff(string(c.Body), string(body)); diff != "" {
					t.Error(diff)
				}
				got := map[string]string{}
				for k := range r.Header {
					if r.Header.Get(k) != "" { // an empty User-Agent keeps Go's away
						got[k] = r.Header.Get(k)
					}
				}
				delete(c.Headers, "Transfer-Encoding")
				if diff := cmp.Diff(c.Headers, got); diff != "" {
					t.Error(diff)
				}
				if r.ContentLength != -1 {
					t.Errorf("Content-Length %d in place of chunks", r.ContentLength)
				}
				return &http.Response{StatusCode: 200, Body: http.NoBody, Request: r}, nil
			})
			if c.Name == "screen snapshot" {
				resp, err := d.sendSnapshot(t.Context(), "http://fleet.example.org/u/1", picture)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				return
			}
			resp, err := d.explain(t.Context(), vision{"http://fleet.example.org/v", "tok-1"}, "What is this?", picture)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		})
	}
}

func TestAppImages(t *testing.T) {
	var file struct {
		Cases []struct {
			Name   string
			Image  []byte `json:"image_base64"`
			Expect struct {
				Valid   bool   `json:"valid_app"`
				Chip    uint16 `json:"chip_id"`
				Version string
				IDF     string
				Elf     string `json:"elf_sha256"`
			}
		}
	}
	load(t, "app_image.json", &file)
	for _, c := range file.Cases {
		t.Run(c.Name, func(t *testing.T) {
			if c.Expect.Chip == 0 {
				c.Expect.Chip = esp32s3.imageID
			}
			for _, step := range []int{1, 7, 4096} {
				b, err := readImage(c.Image, c.Expect.Chip, step)
				if (err == nil) != c.Expect.Valid {
					t.Fatalf("in steps of %d: %v", step, err)
				}
				if c.Expect.Valid && b.version != c.Expect.Version || c.Expect.Elf != "" && (b.elf != c.Expect.Elf || b.idf != c.Expect.IDF) {
					t.Errorf("in steps of %d: %+v", step, b)
				}
			}
		})
	}
}

func readImage(data []byte, chip uint16, step int) (*build, error) {
	image := newAppImage(chip)
	for len(data) > 0 {
		n := min(step, len(data))
		if _, err := image.Write(data[:n]); err != nil {
			return nil, err
		}
		data = data[n:]
	}
	return image.finish()
}
