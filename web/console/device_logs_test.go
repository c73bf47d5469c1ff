package console_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/audit"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/telemetry"
)

const logged = fleet.DeviceID("a085e3112266")

// object returns the schema of a tool whose arguments are all optional.
func object(properties string) json.RawMessage {
	return json.RawMessage(`{"type":"object","properties":{` + properties + `}}`)
}

var logTools = []fleet.Tool{
	{Name: fleet.ToolLogsTail, Audience: fleet.AudienceUser,
		InputSchema: object(`"from":{"type":"integer"},"lines":{"type":"integer"}`)},
	{Name: fleet.ToolLogsLevel, Audience: fleet.AudienceUser,
		InputSchema: object(`"level":{"type":"string"},"tag":{"type":"string"}`)},
	{Name: fleet.ToolLogsStream, Audience: fleet.AudienceUser,
		InputSchema: object(`"seconds":{"type":"integer"},"level":{"type":"string"}`)},
	{Name: fleet.ToolCoreDumpInfo, Audience: fleet.AudienceUser, InputSchema: object(``)},
	{Name: fleet.ToolCoreDumpUpload, Audience: fleet.AudienceUser,
		InputSchema: object(`"url":{"type":"string"},"erase":{"type":"boolean"}`)},
}

// A crashed is a device with the log and core dump tools of the included firmware, as far as the
// console uses them.
type crashed struct {
	c     *site
	dump  []byte // nil if the device has no core dump
	said  string // its summary of the crash
	asked []string
}

func (c *site) crash(dump []byte, said string) *crashed {
	c.t.Helper()
	c.poll(logged)
	now := time.Now().UTC()
	if err := c.devices.Listed(c.t.Context(), fleet.ToolListing{Device: logged,
		Inventory: fleet.Inventory{ID: strings.Repeat("cd", 32), Tools: logTools, CreatedAt: now}, Version: "1.1.0",
		At: now}); err != nil {
		c.t.Fatal(err)
	}
	d := &crashed{c: c, dump: dump, said: said}
	c.connect(logged, d.answer)
	return d
}

func (d *crashed) answer(ctx context.Context, tool string, arguments json.RawMessage) (fleet.Answer, error) {
	d.asked = append(d.asked, tool+" "+string(arguments))
	var args struct {
		URL   string
		Erase bool
		From  int
	}
	if len(arguments) > 0 {
		if err := json.Unmarshal(arguments, &args); err != nil {
			return fleet.Answer{}, err
		}
	}
	switch tool {
	case fleet.ToolCoreDumpInfo:
		b, err := json.Marshal(map[string]any{"present": d.dump != nil, "size": len(d.dump), "summary": d.said})
		return fleettest.Text(string(b)), err
	case fleet.ToolCoreDumpUpload:
		token := args.URL[strings.LastIndex(args.URL, "/")+1:]
		_, err := d.c.coreDumps.Receive(ctx, token, func() (io.Reader, error) { return bytes.NewReader(d.dump), nil })
		if args.Erase && err == nil {
			d.dump = nil
		}
		return fleettest.Text(fmt.Sprint(err == nil)), nil
	case fleet.ToolLogsTail:
		if args.From > 0 {
			return fleettest.Text(`{"first":7,"lines":[],"next":9}`), nil
		}
		return fleettest.Text(`{"first":7,"lines":[{"n":7,"t":61042,"level":"error","tag":"<b>ota</b>","text":"it <i>broke</i>"},{"n":8,"t":61043,"level":"info","tag":"net","text":"up"}],"next":9}`), nil
	}
	return fleettest.Text("true"), nil
}

// streams sends lines as a followed device does.
func (d *crashed) streams(first int, texts ...string) {
	var lines []string
	for i, text := range texts {
		lines = append(lines, fmt.Sprintf(`{"n":%d,"t":%d,"level":"warn","tag":"net","text":%q}`, first+i, 70000+i, text))
	}
	d.c.reports.Notified(logged, "notifications/log", json.RawMessage(fmt.Sprintf(`{"lines":[%s],"next":%d,"dropped":2}`,
		strings.Join(lines, ","), first+len(texts))))
}

func TestStockDeviceHasNoLogs(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	b := c.as(fleet.RoleViewer)
	if got := b.get("/devices/a085e3112233").wantStatus(200).text("nav"); strings.Contains(got, "Logs") {
		t.Errorf("the tabs of a stock device are %q", got)
	}
	b.get("/devices/a085e3112233/logs").wantStatus(200).wantText("#main",
		"Stock firmware writes its log only to the serial port")
	c.crash(nil, "")
	if got := b.get("/devices/" + string(logged)).text("nav"); !strings.Contains(got, "Logs & crashes") {
		t.Errorf("the tabs of a device with logs are %q", got)
	}
	b.get("/devices/"+string(logged)+"/logs?lang=zh-CN").wantText("#main", "尚未从这台设备收集到核心转储")
}

func TestCoreDumpIsFetchedShownAndDeleted(t *testing.T) {
	c := newConsole(t)
	dump := []byte("\x7fELF core \x00 dump")
	d := c.crash(dump, "task main pc 0x40 <script>alert(1)</script>")
	c.reports.Notified(logged, "notifications/telemetry",
		json.RawMessage(`{"uptime_s":5,"version":"1.1.0","reset_reason":"panic","boots":4,"crashes":1,"core_dump":true,"birth":true}`))
	b := c.as(fleet.RoleOperator)
	live := b.stream("/events?view=device&tab=logs&id=" + string(logged))
	fleettest.Eventually(t, "the report is stored", func() bool {
		v, err := c.reports.Vitals(t.Context(), logged)
		return err == nil && v.Boots == 4
	})
	b.get("/devices/"+string(logged)+"/logs").wantText("#crashes", "reports a core dump that has not been fetched yet")

	location := b.post("/devices/"+string(logged)+"/core-dumps", url.Values{"erase": {"true"}}).wantRedirect("/devices/" +
		string(logged) + "/logs")
	live.want("patch", `id="crashes"`, "task main pc 0x40")
	p := b.get(location).wantStatus(200).wantText("#flash", "Core dump fetched").wantText("#crashes",
		"task main pc 0x40 <script>alert(1)</script>")
	p.wantText("#crashes", "crashed").wantText("#crashes", "2.4.0").wantText("#crashes", "rolled back after the crash")
	if strings.Contains(p.body, "<script>alert(1)") {
		t.Error("the device's words are not escaped")
	}
	if d.dump != nil || len(d.asked) != 2 {
		t.Errorf("asked %q; the core dump was not erased: %v", d.asked, d.dump != nil)
	}
	dumps, err := c.store.CoreDumps(t.Context(), logged, 9)
	if err != nil || len(dumps) != 1 || dumps[0].ResetReason != "panic" || dumps[0].Boots != 4 ||
		dumps[0].BuildFrom != telemetry.BuildFromDevice {
		t.Fatalf("core dumps %+v: %v", dumps, err)
	}
	at := "/core-dumps/" + dumps[0].ID.String()
	file := b.get(at + "/content").wantStatus(200)
	if file.body != string(dump) || file.header.Get("Content-Type") != "application/octet-stream" ||
		file.header.Get("X-Content-Type-Options") != "nosniff" ||
		!strings.HasPrefix(file.header.Get("Content-Disposition"), `attachment; filename="coredump-a085e3112266-`) {
		t.Errorf("%q with %v", file.body, file.header)
	}
	if p := c.as(fleet.RoleViewer).get("/devices/" + string(logged) + "/logs"); strings.Contains(p.body, at) {
		t.Error("a viewer is offered the core dump, which may hold passwords")
	}

	b.post("/devices/"+string(logged)+"/core-dumps", nil).wantRedirect("/devices/")
	b.get("/devices/"+string(logged)+"/logs").wantText("#flash", "has no core dump")

	b.post(at+"/delete", nil).wantRedirect("/devices/" + string(logged) + "/logs")
	b.get(at + "/content").wantStatus(404)
	b.post(at+"/delete", nil).wantStatus(404)
	log, err := c.store.AuditEntries(t.Context(), audit.Filter{Action: "core_dump.delete"})
	if err != nil || len(log.Items) != 1 || log.Items[0].Actor.Name != "operator-1" ||
		log.Items[0].Detail["device"] != string(logged) {
		t.Errorf("audit %+v: %v", log.Items, err)
	}
}

func TestLogIsFetchedFilteredAndFollowed(t *testing.T) {
	c := newConsole(t)
	d := c.crash(nil, "")
	b, viewer := c.as(fleet.RoleOperator), c.as(fleet.RoleViewer)
	at := "/devices/" + string(logged) + "/logs"
	live, filtered := viewer.stream("/events?view=device&tab=logs&id="+string(logged)),
		b.stream("/events?view=device&tab=logs&level=error&id="+string(logged))
	elsewhere := viewer.stream("/events?view=device&id=" + string(logged))

	d.streams(1, "unasked") // not followed: the lines are dropped
	b.post(at+"/fetch", nil).wantRedirect(at)
	p := b.get(at).wantText("#flash", "Log fetched").wantText("#log-lines",
		"0:01:01.042 E <b>ota</b> it <i>broke</i>").wantText("#log-lines", "net up")
	if n := len(p.find("li[class=log-error]")); n != 1 || strings.Contains(p.body, "unasked") {
		t.Errorf("%d lines of level error", n)
	}
	if got := b.get(at + "?level=error").text("#log-lines"); strings.Contains(got, "net") || !strings.Contains(got,
		"broke") {
		t.Errorf("errors alone: %q", got)
	}
	b.get(at+"?q=NET").wantText("#log-lines", "up")
	b.get(at+"?q=nowhere").wantText("#log-pane", "None of the 2 lines")
	if got := b.get(at + ".txt?q=net"); got.body != "0:01:01.043 info    net: up\n" ||
		got.header.Get("Content-Disposition") != `attachment; filename="log-a085e3112266.txt"` {
		t.Errorf("as text: %q, %v", got.body, got.header)
	}

	b.post(at+"/follow", url.Values{"to": {"warn"}}).wantRedirect(at)
	live.want("patch", `id="log-state"`, "following")
	d.streams(9, "one", "two")
	live.want("patch", `data-into="log-lines"`, ">one<", ">two<")
	if last := d.asked[len(d.asked)-1]; last != fleet.ToolLogsStream+` {"seconds":60,"level":"warn"}` {
		t.Errorf("asked %q", last)
	}
	viewer.get(at).wantText("#log-lines", "two").wantText("#log-state", "operator-1").wantText("#log-pane",
		"dropped 2 lines")
	b.post(at+"/stop", url.Values{"level": {"error"}}).wantRedirect(at + "?level=error")
	live.want("patch", `id="log-state"`)
	d.streams(11, "three")
	if got := viewer.get(at).text("#log-lines"); strings.Contains(got, "three") {
		t.Errorf("a line came after the stop: %q", got)
	}
	for _, s := range []*stream{filtered, elsewhere} {
		for len(s.events) > 0 {
			if e := <-s.events; strings.Contains(e.data, ">one<") {
				t.Errorf("a page that does not show it was sent %s", e.data)
			}
		}
	}
}

func TestLogForms(t *testing.T) {
	c := newConsole(t)
	d := c.crash(nil, "")
	b := c.as(fleet.RoleOperator)
	at := "/devices/" + string(logged) + "/logs"
	b.post(at+"/level", url.Values{"to": {"debug"}, "tag": {" ota "}}).wantRedirect(at)
	if last := d.asked[len(d.asked)-1]; last != fleet.ToolLogsLevel+` {"level":"debug","tag":"ota"}` {
		t.Errorf("asked %q", last)
	}
	for _, path := range []string{"/level", "/follow"} {
		b.post(at+path, url.Values{"to": {"loud"}}).wantStatus(http.StatusUnprocessableEntity)
	}
	b.post("/devices/ffffffffffff/logs/fetch", nil).wantStatus(404)
	c.link.Disconnect(logged)
	for _, path := range []string{"/fetch", "/follow", "/stop", "/level"} {
		b.post(at+path, url.Values{"to": {"info"}}).wantRedirect(at)
		b.get(at).wantText("#flash", "not connected")
	}
	if got := b.get(at).text("#log-state"); strings.Contains(got, "Stop") {
		t.Errorf("a device that is away is followed: %q", got)
	}
}
