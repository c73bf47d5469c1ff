package device_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/go-cmp/cmp"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/web/device"
)

// campaigns is a fake of the campaign engine.
type campaigns func(ctx context.Context, p enrolment.BootPoll, firstBoot bool) *fleet.FirmwareOffer

func (f campaigns) Poll(ctx context.Context, p enrolment.BootPoll, firstBoot bool) *fleet.FirmwareOffer {
	return f(ctx, p, firstBoot)
}

// pollWith sends one boot poll to a site with the given campaigns.
func pollWith(t *testing.T, s *site, c campaigns, headers map[string]string, body string) (section string) {
	t.Helper()
	answers, err := enrolment.NewPollAnswers(enrolment.PollAnswerOptions{Endpoint: "fleet.example.org:1883"})
	if err != nil {
		t.Fatal(err)
	}
	router := chi.NewRouter()
	device.New(device.Options{Enrolments: s.enrolments, Snapshots: s.snapshots,
		BootPolls: bootPolls(s.enrolments, s.presences, answers, c)}).Routes(router)
	req := httptest.NewRequest(http.MethodPost, "/xiaozhi/ota/", strings.NewReader(body))
	for k, v := range headers {
		req.Header.Set(k, v)
	}
	w := httptest.NewRecorder()
	router.ServeHTTP(w, req)
	var answer struct{ MQTT, Firmware json.RawMessage }
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Code != 200 || enrolment.CheckPollAnswer(
		w.Body.Bytes()) != nil {
		t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	if answer.MQTT == nil {
		t.Errorf("no credentials in %s", w.Body)
	}
	return string(answer.Firmware)
}

func TestOffers(t *testing.T) {
	headers := map[string]string{"Device-Id": unit.MAC(), "Client-Id": uuid1, "User-Agent": "bread-compact-wifi/2.4.2"}
	poll := func(elf string) string { return `{"application":{"version":"2.4.2","elf_sha256":"` + elf + `"}}` }
	a, b := strings.Repeat("a", 64), strings.Repeat("b", 64)
	offer := func(o fleet.FirmwareOffer) campaigns {
		return func(context.Context, enrolment.BootPoll, bool) *fleet.FirmwareOffer { return &o }
	}
	const link = "http://h/d/token/firmware.bin"
	tests := []struct {
		name string
		c    campaigns
		want string
	}{
		{"none", func(context.Context, enrolment.BootPoll, bool) *fleet.FirmwareOffer { return nil }, ""},
		{"newer", offer(fleet.FirmwareOffer{Version: "2.4.3", URL: link}), `{"version":"2.4.3","url":"` + link +
			`","force":0}`},
		{"forced", offer(fleet.FirmwareOffer{Version: "2.4.1", URL: link, Force: true}), `{"version":"2.4.1","url":"` + link +
			`","force":1}`},
		{"a version that crashes devices", offer(fleet.FirmwareOffer{Version: "v2.4.3", URL: link}), ""},
		{"no address", offer(fleet.FirmwareOffer{Version: "2.4.3"}), ""},
		{"panic", func(context.Context, enrolment.BootPoll, bool) *fleet.FirmwareOffer { panic("no campaign") }, ""},
		{"too slow", func(ctx context.Context, _ enrolment.BootPoll, _ bool) *fleet.FirmwareOffer {
			until, ok := ctx.Deadline()
			if !ok || time.Until(until) > 2*time.Second {
				t.Errorf("the deadline is %v", until)
			}
			return nil
		}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := pollWith(t, newSite(t, fleet.EnrolOpen), tt.c, headers, poll(a)); got != tt.want {
				t.Errorf("offered %s, want %s", got, tt.want)
			}
		})
	}

	t.Run("first boots", func(t *testing.T) {
		s := newSite(t, fleet.EnrolOpen)
		var firsts []bool
		watch := func(_ context.Context, p enrolment.BootPoll, first bool) *fleet.FirmwareOffer {
			firsts = append(firsts, first)
			return nil
		}
		for _, body := range []string{poll(a), poll(a), poll(b), poll(b), "{broken", poll(b), poll(a), `{}`} {
			pollWith(t, s, watch, headers, body)
		}
		headers := map[string]string{"Device-Id": unit.MAC(), "Client-Id": uuid1, "User-Agent": "bread-compact-wifi/2.4.3"}
		pollWith(t, s, watch, headers, "{broken") // another version is another build
		want := []bool{true, false, true, false, false, false, true, false, true}
		if d := cmp.Diff(want, firsts); d != "" {
			t.Errorf("first boots (-want +got)\n%s", d)
		}
	})

	t.Run("a stranger changes nothing", func(t *testing.T) {
		s := newSite(t, fleet.EnrolByApproval)
		first := func(answer enrolment.PollAnswer, err error) bool {
			if err != nil || answer.Session == nil {
				t.Fatalf("%+v, %v", answer, err)
			}
			return answer.FirstBoot
		}
		polled := func(client, elf string) enrolment.BootPoll {
			return enrolment.BootPoll{Device: unit, ClientID: client, Version: "2.4.2", ELFSHA256: elf, At: time.Now()}
		}
		if _, err := s.enrolments.Poll(polled(uuid1, a)); err != nil {
			t.Fatal(err)
		}
		if err := s.enrolments.Approve(t.Context(), fleet.Principal{Kind: fleet.KindOperator, Name: "ann",
			Role: fleet.RoleOperator}, unit, ""); err != nil {
			t.Fatal(err)
		}
		first(s.enrolments.Poll(polled(uuid1, a)))
		if answer, err := s.enrolments.Poll(polled("another", b)); err != nil || answer.Session != nil {
			t.Fatalf("%+v, %v", answer, err)
		}
		if runs := s.enrolments.Running(unit).ELFSHA256; runs != a {
			t.Errorf("a stranger says that the device runs %s", runs)
		}
		s.flush(t)
		if stored := s.stored(unit).Poll.ELFSHA256; stored == b {
			t.Error("a stranger's build is on record")
		}
		if !first(s.enrolments.Poll(polled(uuid1, b))) {
			t.Error("the first boot was taken for a later one")
		}
	})

	t.Run("strangers", func(t *testing.T) {
		s := newSite(t, fleet.EnrolByCode)
		asked := false
		answers, err := enrolment.NewPollAnswers(enrolment.PollAnswerOptions{Endpoint: "fleet.example.org:1883"})
		if err != nil {
			t.Fatal(err)
		}
		router := chi.NewRouter()
		offers := campaigns(func(context.Context, enrolment.BootPoll, bool) *fleet.FirmwareOffer {
			asked = true
			return &fleet.FirmwareOffer{Version: "9", URL: link}
		})
		device.New(device.Options{Enrolments: s.enrolments, Snapshots: s.snapshots,
			BootPolls: bootPolls(s.enrolments, s.presences, answers, offers)}).Routes(router)
		req := httptest.NewRequest(http.MethodPost, "/xiaozhi/ota/", strings.NewReader(poll(a)))
		req.Header.Set("Device-Id", unit.MAC())
		w := httptest.NewRecorder()
		router.ServeHTTP(w, req)
		if asked || strings.Contains(w.Body.String(), "firmware") {
			t.Errorf("asked %v, answered %s", asked, w.Body)
		}
	})
}

func TestLayouts(t *testing.T) {
	headers := map[string]string{"Device-Id": unit.MAC(), "Client-Id": uuid1}
	vector := ""
	for _, v := range pollVectors(t) {
		if vector == "" && v.Expect.OTASlots != nil && *v.Expect.OTASlots == 2 {
			vector = v.Body
		}
	}
	many := `{"partition_table":[` + strings.Repeat(`{"label":"x","type":0,"subtype":16,"size":1},`, 5000) + `{}]}`
	tests := []struct {
		name, body string
		want       *fleet.FlashLayout
	}{
		{"stock", `{"flash_size":16777216,"minimum_free_heap_size":"8213412","chip_info":{"revision":102},"partition_table":[
			{"label":"nvs","type":1,"subtype":2,"size":16384},{"label":"ota_0","type":0,"subtype":16,"size":4128768},
			{"label":"ota_1","type":0,"subtype":17,"size":4063232},{"label":"assets","type":1,"subtype":130,"size":8388608}]}`,
			&fleet.FlashLayout{SlotSize: 4063232, Labels: []string{"nvs", "ota_0", "ota_1", "assets"}, ChipRev: 102,
				FreeHeap: 8213412, FlashBytes: 16777216}},
		{"no slot", `{"partition_table":[{"label":"factory","type":0,"subtype":0,"size":3145728}]}`,
			&fleet.FlashLayout{Labels: []string{"factory"}}},
		{"no table", `{"flash_size":16777216}`, nil},
		{"empty table", `{"partition_table":[]}`, nil},
		{"table of a wrong type", `{"partition_table":{"label":"ota_0"}}`, nil},
		{"broken", `{"partition_table":[`, nil},
		{"hostile", `{"flash_size":-1,"minimum_free_heap_size":1e99,"chip_info":[],"partition_table":[null,1,"x",[],{"label":7,"type":"0","subtype":16.5,"size":5},
			{"label":"a\u0000\u001bb` + strings.Repeat("z",
			99) + `","type":0,"subtype":16,"size":-4},{"type":0,"subtype":31,"size":99999999999999999999},
			{"subtype":16,"size":4},{"label":"ok","type":0,"subtype":18,"size":100},{"label":"too high","type":0,"subtype":32,"size":1}]}`,
			&fleet.FlashLayout{SlotSize: 100, Labels: []string{"abzzzzzzzzzzzzzz", "ok", "too high"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var seen enrolment.BootPoll
			pollWith(t, newSite(t, fleet.EnrolOpen), func(_ context.Context, p enrolment.BootPoll, _ bool) *fleet.FirmwareOffer {
				seen = p
				return nil
			}, headers, tt.body)
			if d := cmp.Diff(tt.want, seen.Layout); d != "" {
				t.Errorf("layout (-want +got)\n%s", d)
			}
		})
	}
	for name, body := range map[string]string{"vector": vector, "many": many} {
		pollWith(t, newSite(t, fleet.EnrolOpen), func(_ context.Context, p enrolment.BootPoll, _ bool) *fleet.FirmwareOffer {
			if name == "vector" && (p.Layout == nil || p.Layout.SlotSize == 0 || len(p.Layout.Labels) < 4) || p.Layout != nil &&
				len(p.Layout.Labels) > 64 {
				t.Errorf("%s: %+v", name, p.Layout)
			}
			return nil
		}, headers, body)
	}
}
