package voice

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"fleetd/broker/voice/voicetest"
	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/fleettest"
)

// someone are programs that are offered.
type someone struct {
	mu  sync.Mutex
	ids []fleet.DeviceID
}

func (s *someone) OfferedToVoice(context.Context, fleet.Principal) ([]fleet.DeviceID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.ids), nil
}

func (s *someone) OffersToVoice(id fleet.DeviceID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.ids, id)
}

func (s *someone) set(ids ...fleet.DeviceID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids = ids
}

func programTool(name string) fleet.Tool {
	return fleet.Tool{Name: name, Description: "Does " + name, Audience: fleet.AudienceModel,
		InputSchema: json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"}},"required":["city"],` +
			`"additionalProperties":false}`)}
}

// programWorld returns a conversation with a device's tools and those of programs, which the
// upstream has listed.
func programWorld(t *testing.T, own []fleet.Tool, programs map[fleet.DeviceID][]fleet.Tool,
	change func(*Options)) (*world, *someone, *voicetest.Session) {
	t.Helper()
	var offered someone
	for id := range programs {
		offered.ids = append(offered.ids, id)
	}
	slices.Sort(offered.ids)
	up := server(t, voicetest.Options{MCP: true})
	w := start(t, up.URL(false), func(o *Options) {
		o.Programs = &offered
		if change != nil {
			change(o)
		}
	})
	w.calls.tools, w.calls.programs = own, programs
	b := newBoard(t, 1)
	b.talk(w.Relay, boardHello)
	b.open()
	s := first(t, up)
	fleettest.Eventually(t, "the tools are listed", s.Listed)
	if faults := s.Faults(); len(faults) > 0 {
		t.Error(faults)
	}
	return w, &offered, s
}

// The upstream lists the device's tools and then those of programs, and calls of these go to the
// program, by the principal of the conversation.
func TestProgramsWithTheDevice(t *testing.T) {
	w, offered, s := programWorld(t, someTools(2, 10), map[fleet.DeviceID][]fleet.Tool{
		"plugin.weather": {programTool("get_weather"), programTool("list_cities")}, "plugin.7up": {programTool("温度")}},
		nil)
	want := []string{"self.tool_00", "self.tool_01", "_7up___", "weather_get_weather", "weather_list_cities"}
	want = slices.Delete(want, 2, 3) // its name has nothing that models' APIs accept
	if got := s.Tools(); !slices.Equal(got, want) {
		t.Fatalf("%v", got)
	}
	if n := w.Stats().LeftOut; n != 1 {
		t.Errorf("%d tools left out", n)
	}
	a, err := s.Call("weather_get_weather", `{"city":"Rome"}`, deadline)
	if err != nil || a.Error != nil || a.Heard() != "get_weather" {
		t.Fatalf("%+v, %v", a, err)
	}
	if _, err = s.Call("self.tool_00", `{}`, deadline); err != nil {
		t.Fatal(err)
	}
	made := w.calls.all()
	if r := made[0]; r.Device != "plugin.weather" || r.Tool != "get_weather" || string(r.Arguments) != `{"city":"Rome"}` ||
		r.Actor.Kind != fleet.KindVoice || r.Actor != made[1].Actor || r.UnlessTalking || r.Interrupt {
		t.Errorf("%+v", r)
	}
	if r := made[1]; r.Device.IsProgram() || r.Tool != "self.tool_00" {
		t.Errorf("%+v", r)
	}

	// Names that were not listed are those of the device's tools.
	for _, name := range []string{"get_weather", "weather.get_weather", "plugin.weather/get_weather", "weather_other"} {
		if _, err := s.Call(name, `{}`, deadline); err != nil {
			t.Fatal(err)
		}
		if r := w.calls.all()[len(w.calls.all())-1]; r.Device.IsProgram() || r.Tool != name {
			t.Errorf("%s reached %s", name, r.Device)
		}
	}
	n := len(w.calls.all())
	offered.set()
	a, err = s.Call("weather_get_weather", `{"city":"Rome"}`, deadline)
	if err != nil || a.Error == nil || a.Error.Message != "error voice_not_offered" || len(w.calls.all()) != n {
		t.Errorf("%+v, %v", a, err)
	}
}

// Without programs, a list has the same bytes as without the option.
func TestListsWithoutPrograms(t *testing.T) {
	own := someTools(40, 800)
	var pages [2][]string
	for i, programs := range []Programs{nil, &someone{}} {
		w := start(t, "ws://192.0.2.1:1/", func(o *Options) { o.Programs = programs })
		w.calls.tools = own
		c := newConversation(w.Relay, newBoard(t, 1).device(), w.o.Upstream, uuid.New())
		for cursor := ""; ; {
			page, no := c.listTools(json.RawMessage(`{"cursor":"` + cursor + `"}`))
			if no != nil {
				t.Fatal(no)
			}
			pages[i] = append(pages[i], string(page))
			var p struct{ NextCursor string }
			if _ = json.Unmarshal(page, &p); p.NextCursor == "" {
				break
			}
			cursor = p.NextCursor
		}
		c.cancel()
	}
	if len(pages[0]) < 4 || !slices.Equal(pages[0], pages[1]) {
		t.Errorf("%d and %d pages differ", len(pages[0]), len(pages[1]))
	}
	if want := `{"tools":[{"name":"self.tool_00","description":"` + strings.Repeat("d", 800) +
		`","inputSchema":{"type":"object","properties":{}}},`; !strings.HasPrefix(pages[1][0], want) {
		t.Errorf("%.200s", pages[1][0])
	}
}

var functionName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]{0,63}$`)

func selectTools(own []fleet.Tool, ids []fleet.DeviceID, programs map[fleet.DeviceID][]fleet.Tool) *offers {
	o := &offers{}
	var units [][]offer
	for _, id := range ids {
		units = append(units, offersOf(id, programs[id], o))
	}
	roomAfter(own).fill(units, o)
	return o
}

// Names are valid, differ from all others also after a voice server has replaced characters, and
// are the same each time.
func TestNamesOfPrograms(t *testing.T) {
	own := []fleet.Tool{{Name: "a.b.c"}, {Name: "self.get_device_status"}}
	ids := []fleet.DeviceID{"plugin.a", "plugin.a_b", "plugin.self", "plugin.0", "plugin.-", "endpoint.a_b"}
	long := strings.Repeat("x", 128)
	programs := map[fleet.DeviceID][]fleet.Tool{
		"plugin.a":     {programTool("b_c"), programTool("b.d"), programTool("b_d"), programTool("b/d"), programTool(long)},
		"plugin.a_b":   {programTool("c"), programTool("d"), programTool("\"},{"), programTool("天")},
		"plugin.self":  {programTool("get_device_status"), programTool("get.device.status")},
		"plugin.0":     {programTool(long), programTool(long[1:])},
		"plugin.-":     {programTool("-")},
		"endpoint.a_b": {programTool("d")},
	}
	o := selectTools(own, ids, programs)
	seen := map[string]bool{"a_b_c": true, "self_get_device_status": true}
	for _, f := range o.list {
		if !functionName.MatchString(f.name) || seen[f.name] {
			t.Errorf("%s, %s: name %q", f.device, f.tool, f.name)
		}
		seen[f.name] = true
		var tool listedTool
		if err := json.Unmarshal(f.text, &tool); err != nil || tool.Name != f.name {
			t.Errorf("%s: %v", f.text, err)
		}
	}
	if len(o.list) != 12 || o.leftOut != 3 {
		t.Errorf("%d tools, %d left out", len(o.list), o.leftOut)
	}
	if again := selectTools(own, ids, programs); fmt.Sprint(again) != fmt.Sprint(o) {
		t.Error("the names are others the second time")
	}
}

// When there is no room, tools of programs are left out, of each program about as many, and the
// device's never.
func TestRoomForPrograms(t *testing.T) {
	many := func(n, size int) (tools []fleet.Tool) {
		for i := range n {
			tool := programTool(fmt.Sprintf("t%03d", i))
			tool.Description = strings.Repeat("é", size)
			tools = append(tools, tool)
		}
		return tools
	}
	ids := []fleet.DeviceID{"plugin.big", "plugin.small"}
	for _, tt := range []struct {
		name       string
		own        []fleet.Tool
		big, small int // tools that are offered
		left       int
		size       int // of descriptions
	}{
		{"a number of tools", someTools(40, 10), 21, 3, 479, 10},
		{"bytes", someTools(20, 100), 18, 3, 482, 1000},
		{"a device with many tools", someTools(70, 10), 0, 0, 503, 10},
		{"a device with large tools", someTools(20, 4000), 0, 0, 503, 10},
	} {
		o := selectTools(tt.own, ids, map[fleet.DeviceID][]fleet.Tool{"plugin.big": many(500, tt.size),
			"plugin.small": many(3, tt.size)})
		small := 0
		for _, f := range o.list {
			if f.device == "plugin.small" {
				small++
			}
		}
		if big := len(o.list) - small; big != tt.big || small != tt.small || o.leftOut != tt.left || o.why == "" {
			t.Errorf("%s: %d and %d tools, %d left out: %s", tt.name, big, small, o.leftOut, o.why)
		}
	}
	w, _, s := programWorld(t, someTools(70, 500), map[fleet.DeviceID][]fleet.Tool{"plugin.big": many(10, 10)}, nil)
	if n := len(s.Tools()); n != 70 || w.Stats().LeftOut != 10 {
		t.Errorf("%d tools, %d left out", n, w.Stats().LeftOut)
	}
}

// A tool that a model's API would refuse is left out: the request would fail as a whole.
func TestSchemasOfPrograms(t *testing.T) {
	for schema, want := range map[string]string{
		``:                                    `{"type":"object","properties":{}}`,
		`{}`:                                  `{"type":"object","properties":{}}`,
		`{"type":"object","properties":null}`: `{"type":"object","properties":{}}`,
		`{"type":"string"}`:                   "",
		`{"type":["object"]}`:                 "",
		`{"required":"all"}`:                  "",
		`{"required":[1]}`:                    "",
		`{"properties":{"a":true}}`:           "",
		`{"properties":[]}`:                   "",
		`{"properties":{"a":{"$ref":"#/$defs/a"}},"$defs":{"a":{}}}`: "",
		`[]`: "", `null`: `{"type":"object","properties":{}}`,
		`{"properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}`: `{"type":"object",` +
			`"properties":{"a":{"type":"integer"}},"required":["a"]}`,
	} {
		got, why := plainSchema(json.RawMessage(schema))
		if string(got) != want || (why == "") != (want != "") {
			t.Errorf("%s: %s, %s", schema, got, why)
		}
	}
	tool := programTool("a")
	tool.Description = strings.Repeat("天", 4000)
	o := selectTools(nil, []fleet.DeviceID{"plugin.a"}, map[fleet.DeviceID][]fleet.Tool{"plugin.a": {tool}})
	var listed listedTool
	if _ = json.Unmarshal(o.list[0].text, &listed); utf8.RuneCountInString(listed.Description) != maxDescription {
		t.Errorf("%d characters", utf8.RuneCountInString(listed.Description))
	}
}

// A program that hangs gets a bounded number of calls and of time; the device's tools work
// meanwhile.
func TestProgramThatHangs(t *testing.T) {
	w, _, s := programWorld(t, someTools(1, 10), map[fleet.DeviceID][]fleet.Tool{"plugin.slow": {programTool("wait")}},
		func(o *Options) { o.CallTimeout = 500 * time.Millisecond })
	release := make(chan struct{})
	w.calls.mu.Lock()
	w.calls.make = func(_ context.Context, r call.Request) (fleet.Call, error) {
		if r.Device.IsProgram() {
			if r.Timeout != 500*time.Millisecond {
				t.Errorf("timeout %s", r.Timeout)
			}
			<-release
		}
		return fleet.Call{State: fleet.CallSucceeded}, nil
	}
	w.calls.mu.Unlock()
	defer close(release)
	answers := make(chan string, 20)
	for range maxAskingPrograms + 2 {
		go func() {
			a, _ := s.Call("slow_wait", `{}`, deadline)
			answers <- a.Heard()
		}()
	}
	for range 2 {
		if heard := <-answers; !strings.HasSuffix(heard, fleet.CodeBusy) {
			t.Error(heard)
		}
	}
	if a, err := s.Call("self.tool_00", `{}`, deadline); err != nil || a.Error != nil {
		t.Errorf("%+v, %v", a, err)
	}
	for range maxAskingPrograms {
		if heard := <-answers; !strings.HasSuffix(heard, fleet.CodeNoAnswer) {
			t.Error(heard)
		}
	}
}

func TestResultsOfPrograms(t *testing.T) {
	for result, want := range map[string]string{
		`{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"structuredContent":{"a":1}}`: "a\nb",
		`{"content":[],"structuredContent":{"a":1}}`:                                                      `{"a":1}`,
		`{"content":[{"type":"image","data":"AAAA"},{"type":"text","text":"a cat"}]}`:                     "[image]\na cat",
		`{"content":[{"type":"resource","resource":{"uri":"a:b","text":"contents"}}]}`:                    "contents",
		`{"content":[]}`: "",
		`{"content":[{"type":"text","text":"` + strings.Repeat("天", 10000) + `"}]}`: strings.Repeat("天", 5461) + "…",
	} {
		if got := Spoken(json.RawMessage(result)); fleet.ResultText(got) != want || isError(got) {
			t.Errorf("%.80s: %.80s", result, got)
		}
	}
	if !isError(Spoken(json.RawMessage(`{"content":[{"type":"text","text":"no"}],"isError":true}`))) {
		t.Error("the error is lost")
	}
}

// A server that gets no tools gets none of programs either.
func TestProgramsForUpstreamWithoutTools(t *testing.T) {
	w, _, s := programWorld(t, someTools(1, 10), map[fleet.DeviceID][]fleet.Tool{"plugin.a": {programTool("b")}},
		func(o *Options) { o.Upstream.NoTools = true })
	a, err := s.Call("a_b", `{"city":"Rome"}`, deadline)
	if len(s.Tools()) != 0 || err != nil || a.Error == nil || len(w.calls.all()) != 0 {
		t.Errorf("%v, %+v, %v", s.Tools(), a, err)
	}
}
