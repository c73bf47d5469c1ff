package enrolment_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
)

// steps records the steps of a boot poll in order. It implements presence and campaigns.
type steps struct {
	taken []string
	offer func(ctx context.Context) *fleet.FirmwareOffer
}

func (s *steps) Polled(_ fleet.DeviceID, _ time.Time, elf string) {
	s.taken = append(s.taken, "note "+elf)
}

func (s *steps) Poll(ctx context.Context, p enrolment.BootPoll, firstBoot bool) *fleet.FirmwareOffer {
	s.taken = append(s.taken, "offer")
	if firstBoot {
		s.taken = append(s.taken, "first boot")
	}
	if s.offer == nil {
		return nil
	}
	return s.offer(ctx)
}

func newBootPolls(t *testing.T, mode fleet.EnrolmentMode, s *steps, log *slog.Logger) *enrolment.BootPolls {
	t.Helper()
	e, err := enrolment.New(enrolment.Options{Store: new(admissionStore), Mode: mode, Key: testKey})
	if err != nil {
		t.Fatal(err)
	}
	answers, err := enrolment.NewPollAnswers(enrolment.PollAnswerOptions{Endpoint: "fleet.example.org:1883"})
	if err != nil {
		t.Fatal(err)
	}
	return enrolment.NewBootPolls(enrolment.BootPollsOptions{Enrolments: e, Presences: s, Offers: s, Answers: answers,
		Log: log})
}

func TestBootPollSteps(t *testing.T) {
	newer := func(context.Context) *fleet.FirmwareOffer {
		return &fleet.FirmwareOffer{Version: "2.4.3", URL: "http://h/d/token/firmware.bin"}
	}
	harmful := func(context.Context) *fleet.FirmwareOffer {
		return &fleet.FirmwareOffer{Version: "v2.4.3", URL: "http://h/d/token/firmware.bin"}
	}
	tests := []struct {
		name     string
		mode     fleet.EnrolmentMode
		offer    func(context.Context) *fleet.FirmwareOffer
		taken    []string
		sections string // of the answer
	}{
		{"enrolled, nothing to install", fleet.EnrolOpen, nil, []string{"note beef", "offer", "first boot"}, "mqtt server_time"},
		{"enrolled, offered", fleet.EnrolOpen, newer, []string{"note beef", "offer", "first boot"},
			"firmware mqtt server_time"},
		{"an offer that harms the device", fleet.EnrolOpen, harmful, []string{"note beef", "offer", "first boot"},
			"mqtt server_time"},
		{"campaigns panic", fleet.EnrolOpen, func(context.Context) *fleet.FirmwareOffer { panic("no campaign") },
			[]string{"note beef", "offer", "first boot"}, "mqtt server_time"},
		{"waiting", fleet.EnrolByCode, newer, nil, "activation server_time"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := &steps{offer: tt.offer}
			body, err := newBootPolls(t, tt.mode, s, nil).Answer(t.Context(), enrolment.BootPoll{Device: unit, ClientID: uuid1,
				Version: "2.4.2", ELFSHA256: "beef", At: time.Now()})
			if err != nil {
				t.Fatal(err)
			}
			var answer map[string]json.RawMessage
			if err := json.Unmarshal(body, &answer); err != nil {
				t.Fatal(err)
			}
			var sections []string
			for name := range answer {
				sections = append(sections, name)
			}
			slices.Sort(sections)
			if got := strings.Join(sections, " "); got != tt.sections {
				t.Errorf("answered with %s, want %s", got, tt.sections)
			}
			if !slices.Equal(s.taken, tt.taken) {
				t.Errorf("took the steps %q, want %q", s.taken, tt.taken)
			}
		})
	}
}

// The campaigns get only a part of the time that the device waits.
func TestOfferIsBounded(t *testing.T) {
	s := &steps{offer: func(ctx context.Context) *fleet.FirmwareOffer {
		if until, ok := ctx.Deadline(); !ok || time.Until(until) > 2*time.Second {
			t.Errorf("the deadline is %v", until)
		}
		return nil
	}}
	if _, err := newBootPolls(t, fleet.EnrolOpen, s, nil).Answer(t.Context(), enrolment.BootPoll{Device: unit,
		ClientID: uuid1, At: time.Now()}); err != nil || len(s.taken) == 0 {
		t.Errorf("%v, %q", err, s.taken)
	}
}

// A device that contradicts itself again and again does not fill the log.
func TestDoubtfulPollsAreLoggedInBounds(t *testing.T) {
	var log strings.Builder
	b := newBootPolls(t, fleet.EnrolOpen, new(steps), slog.New(slog.NewTextHandler(&log, nil)))
	now := time.Now()
	for _, p := range []struct {
		mac   string
		polls int
	}{{"", 3}, {unit.MAC(), 3}, {"a0:85:e3:99:99:99", 50}} {
		for range p.polls {
			if _, err := b.Answer(t.Context(), enrolment.BootPoll{Device: unit, ClientID: uuid1, BodyMAC: p.mac,
				At: now}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := strings.Count(log.String(), "suspicious"); n != 10 {
		t.Errorf("%d lines, want 10", n)
	}
	if _, err := b.Answer(t.Context(), enrolment.BootPoll{Device: unit, ClientID: uuid1, BodyMAC: "x",
		At: now.Add(time.Minute)}); err != nil || strings.Count(log.String(), "suspicious") != 11 {
		t.Errorf("a minute later nothing was logged, %v", err)
	}
}
