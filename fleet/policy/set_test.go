package policy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"fleetd/fleet"
	"fleetd/fleet/call"
)

// decideNaively evaluates every condition of every rule, in order.
func decideNaively(rules []Rule, p *call.Proposal) *Rule {
	matches := func(patterns []string, s string) bool {
		return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool {
			return p == s || strings.HasSuffix(p, "*") && strings.HasPrefix(s, p[:len(p)-1])
		})
	}
	for i, r := range rules {
		q, err := fleet.ParseQuery(r.Devices)
		if err != nil {
			panic(err)
		}
		_, selected := q.Match(*p.Device, p.Offers, p.At)
		audience := fleet.AudienceModel
		if p.Tool.UserOnly() {
			audience = fleet.AudienceUser
		}
		var arguments any
		if json.Unmarshal(p.Arguments, &arguments) != nil {
			arguments = map[string]any{}
		}
		switch {
		case !r.Enabled,
			len(r.Kinds) > 0 && !slices.Contains(r.Kinds, p.Principal.Kind),
			len(r.Roles) > 0 && !slices.Contains(r.Roles, p.Principal.RoleOn(*p.Device)),
			!matches(r.Names, p.Principal.Name), !matches(r.Tools, p.Tool.Name),
			r.Audience != "" && r.Audience != audience,
			len(r.Effects) > 0 && !slices.Contains(r.Effects, fleet.EffectOf(p.Tool.Name)),
			r.Devices != "" && !selected,
			len(r.Arguments) > 0 && call.CompileSchema(r.Arguments).Validate(arguments) != nil,
			r.Window != nil && !fleet.WindowOpen([]fleet.Window{*r.Window}, time.UTC, p.At, 0):
		default:
			return &rules[i]
		}
	}
	return nil
}

var (
	someTools = []string{"self.get_device_status", "self.audio_speaker.set_volume", fleet.ToolReboot, fleet.ToolSnapshot,
		"self.screen.set_theme", "self.disp.network", "Self.Reboot"}
	someDevices = []string{"", "tag:lab", "tag:LAB,2F", "board:atoms3r", "board:esp-box*", "-tag:lab", "id:a085e3112233",
		"version<2.4", "hold", "-hold tag:lab", "kitchen", "tool:self.reboot", "tag:lab board:atoms3r", "seen>2d", "retired",
		"presence:online", "name:Küche", "tag:küche"}
	someSchemas = []string{"", `{"properties":{"volume":{"minimum":50}},"required":["volume"]}`, `{"maxProperties":0}`,
		`{"properties":{"theme":{"enum":["dark"]}}}`, `{"not":{"required":["volume"]}}`}
	someArguments = []string{"", "{}", `{"volume":10}`, `{"volume":50}`, `{"theme":"dark"}`, `{"theme":"light","volume":99}`}
	start         = time.Date(2026, 3, 28, 0, 0, 0, 0, time.UTC)
)

// drawSome draws a few values, or none.
func drawSome[S any](t *rapid.T, from []S, label string) []S {
	if !rapid.Bool().Draw(t, label+"?") {
		return nil
	}
	return rapid.SliceOfN(rapid.SampledFrom(from), 1, 3).Draw(t, label)
}

func drawRule(t *rapid.T) Rule {
	r := Rule{ID: uuid.New(), Name: "rule", Enabled: rapid.IntRange(0, 5).Draw(t, "enabled") > 0,
		Kinds: drawSome(t, fleet.PrincipalKinds, "kinds"), Roles: drawSome(t, roles, "roles"),
		Names:    drawSome(t, []string{"bot", "bot-*", "anna", "*"}, "names"),
		Tools:    drawSome(t, append(slices.Clone(someTools), "self.*", "self.screen.*", "*"), "tools"),
		Audience: rapid.SampledFrom(audiences).Draw(t, "audience"),
		Devices:  rapid.SampledFrom(someDevices).Draw(t, "devices"),
		Decision: rapid.SampledFrom(decisions).Draw(t, "decision")}
	if rapid.IntRange(0, 3).Draw(t, "effects?") == 0 {
		r.Effects = drawSome(t, Effects, "effects")
	}
	if schema := rapid.SampledFrom(someSchemas).Draw(t, "schema"); schema != "" {
		r.Arguments = json.RawMessage(schema)
	}
	if rapid.IntRange(0, 3).Draw(t, "window?") == 0 {
		r.Window = &fleet.Window{Cron: rapid.SampledFrom([]string{"0 2 * * *", "*/30 * * * *", "0 0 30 2 *"}).Draw(t, "cron"),
			Duration: rapid.SampledFrom([]time.Duration{10 * time.Minute, 5 * time.Hour}).Draw(t, "for"),
			TimeZone: rapid.SampledFrom([]string{"UTC", "Europe/Berlin"}).Draw(t, "zone")}
	}
	if err := r.Clean(); err != nil {
		t.Fatal(err)
	}
	return r
}

func drawProposal(t *rapid.T) *call.Proposal {
	d := fleet.Device{ID: rapid.SampledFrom([]fleet.DeviceID{"a085e3112233", "a085e3112244"}).Draw(t, "id"),
		Name:    rapid.SampledFrom([]string{"", "Kitchen", "KÜCHE"}).Draw(t, "name"),
		Board:   rapid.SampledFrom([]string{"", "AtomS3R", "esp-box-3"}).Draw(t, "board"),
		Version: rapid.SampledFrom([]string{"", "2.3", "2.4.1"}).Draw(t, "version"),
		Tags:    drawSome(t, []string{"lab", "Lab", "2f", "Küche"}, "tags")}
	if rapid.Bool().Draw(t, "held") {
		d.Hold = &fleet.Hold{Reason: "x"}
	}
	if rapid.IntRange(0, 5).Draw(t, "retired") == 0 {
		d.RetiredAt = &start
	}
	p := &call.Proposal{Device: &d, Principal: fleet.Principal{
		Kind: rapid.SampledFrom(fleet.PrincipalKinds).Draw(t, "kind"),
		Name: rapid.SampledFrom([]string{"bot", "bot-2", "anna"}).Draw(t, "caller"),
		Role: rapid.SampledFrom(roles).Draw(t, "role")},
		Tool: fleet.Tool{Name: rapid.SampledFrom(someTools).Draw(t, "tool"),
			Audience: rapid.SampledFrom([]fleet.Audience{fleet.AudienceModel, fleet.AudienceUser}).Draw(t, "of")},
		Offers: func(_ fleet.Device, tool string) bool { return tool == fleet.ToolReboot },
		At:     start.Add(time.Duration(rapid.IntRange(0, 72*60).Draw(t, "minute"))*time.Minute + time.Second)}
	if rapid.Bool().Draw(t, "scoped") {
		filter, _ := fleet.ParseScope("tag:lab")
		p.Principal.Scope = &fleet.Scope{Filter: filter, Rest: fleet.RoleViewer}
	}
	if text := rapid.SampledFrom(someArguments).Draw(t, "arguments"); text != "" {
		p.Arguments = json.RawMessage(text)
	}
	return p
}

func TestSetAgreesWithNaiveEvaluation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rules := rapid.SliceOfN(rapid.Custom(drawRule), 0, 70).Draw(t, "rules")
		set, err := Compile(rules, 1)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			p := drawProposal(t)
			want := decideNaively(rules, p)
			for range 2 { // the second time uses the cache
				got, err := set.Decide(p)
				if err != nil || (got == nil) != (want == nil) || got != nil && got.ID != want.ID {
					t.Fatalf("decided by %+v, %v, want %+v", got, err, want)
				}
			}
		}
	})
}

// A rule that lint reports as never deciding decides no call.
func TestLintIsRight(t *testing.T) {
	shadowed := 0
	rapid.Check(t, func(t *rapid.T) {
		rules := rapid.SliceOfN(rapid.Custom(drawRule), 2, 30).Draw(t, "rules")
		set, err := Compile(rules, 1)
		if err != nil {
			t.Fatal(err)
		}
		never := map[uuid.UUID]string{}
		for _, w := range Lint(rules, nil, start) {
			if w.Reason.Code != WarnLockedOut {
				never[w.Rule] = w.Reason.Code
			}
		}
		shadowed += len(never)
		for range 50 {
			p := drawProposal(t)
			if p.Principal.Kind == fleet.KindCampaign {
				p.Principal.Role, p.Principal.Scope = fleet.RoleOperator, nil
			}
			if r, _ := set.Decide(p); r != nil && never[r.ID] != "" {
				t.Fatalf("lint says %s of a rule that decides: %+v", never[r.ID], r)
			}
		}
	})
	if shadowed == 0 {
		t.Error("no rule was ever found to be without effect")
	}
}

func TestAmbiguousArgumentsAreDenied(t *testing.T) {
	loud := Rule{ID: uuid.New(), Name: "loud", Enabled: true, Decision: call.DecisionDeny, Tools: []string{"self.a"},
		Arguments: json.RawMessage(`{"properties":{"volume":{"minimum":50}},"required":["volume"]}`)}
	s := service(t, loud)
	for arguments, want := range map[string]string{
		`{"volume":10}`: "", `{"volume":90}`: "policy_denied", `{"volume":90,"volume":10}`: "ambiguous_arguments",
		`{"volume":90,"Volume":10}`: "ambiguous_arguments", `{"a":{"x":[{"b":1,"b":2}]}}`: "ambiguous_arguments",
		`{"a":[1,"a","a"],"b":{"a":1}}`: "", `{"volume":"a","x":"volume"}`: "policy_denied",
	} {
		p := proposal(fleet.KindProgram, "self.a")
		p.Arguments = json.RawMessage(arguments)
		v := s.Judge(p)
		if code := v.Reason.Code; want == "policy_denied" && (v.Decision != call.DecisionDeny || code != "") ||
			want != "policy_denied" && code != want {
			t.Errorf("%s: %s %s, want %q", arguments, v.Decision, code, want)
		}
		// A rule about another tool must not evaluate the arguments.
		p.Tool.Name = "self.b"
		if v := s.Judge(p); v.Decision != call.DecisionAllow {
			t.Errorf("%s of another tool: %s %v", arguments, v.Decision, v.Reason)
		}
	}
}

func TestCompileRefusesHostileSchemas(t *testing.T) {
	for _, schema := range []string{`{"$ref":"#"}`, `{"properties":{"a":{"pattern":"` + strings.Repeat("(a|b)*", 100) + `"}}}`,
		`[]`, `7`, `{"type":7}`, strings.Repeat(`{"not":`, 3000) + "{}" + strings.Repeat("}", 3000)} {
		r := Rule{Name: "x", Enabled: true, Decision: call.DecisionDeny, Arguments: json.RawMessage(schema)}
		if err := new(r).Clean(); err == nil {
			t.Errorf("the schema %.60s is accepted", schema)
		}
		if _, err := Compile([]Rule{r}, 1); err == nil {
			t.Errorf("a table with the schema %.60s is compiled", schema)
		}
	}
}

// officeRules returns n rules like those of a fleet with many sites.
func officeRules(n int) []Rule {
	var all []Rule
	for i := range n {
		r := Rule{ID: uuid.New(), Name: fmt.Sprint("rule ", i), Enabled: true, Decision: call.DecisionDeny}
		switch i % 5 {
		case 0: // another caller
			r.Kinds, r.Names = []fleet.PrincipalKind{fleet.KindModel}, []string{fmt.Sprint("bot-", i)}
		case 1: // another tool
			r.Tools = []string{fmt.Sprint("self.site", i, ".*")}
		case 2: // another site
			r.Devices = fmt.Sprint("tag:site-", i)
		case 3: // the same tool, other arguments
			r.Tools, r.Devices = []string{"self.audio_speaker.set_volume"}, fmt.Sprint("tag:site-", i)
			r.Arguments = json.RawMessage(`{"properties":{"volume":{"minimum":90}},"required":["volume"]}`)
		case 4: // at night
			r.Kinds, r.Window = []fleet.PrincipalKind{fleet.KindProgram}, &fleet.Window{Cron: "0 2 * * *", Duration: time.Hour,
				TimeZone: "Europe/Berlin"}
			r.Tools = []string{"self.reboot"}
		}
		all = append(all, r)
	}
	return append(all, Rule{ID: uuid.New(), Name: "volume", Enabled: true, Decision: call.DecisionAllow,
		Tools: []string{"self.audio_speaker.set_volume"}})
}

// siteRules returns n rules about the call's tool and caller, each with another query.
func siteRules(n int) []Rule {
	all := officeRules(0)
	for i := range n {
		query := fmt.Sprint("tag:site-", i, " board:esp-box*")
		if i%10 == 0 {
			query = fmt.Sprintf("version<2.%d presence:offline", i)
		}
		all = slices.Insert(all, 0, Rule{ID: uuid.New(), Name: query, Enabled: true, Decision: call.DecisionDeny,
			Devices: query})
	}
	return all
}

// storedRules is a store with fixed rules that counts nothing.
type storedRules struct {
	Store
	rules []Rule
}

func (s storedRules) Policies(context.Context) ([]Rule, int64, error)           { return s.rules, 1, nil }
func (s storedRules) PolicyVersion(context.Context) (int64, error)              { return 1, nil }
func (s storedRules) CallUses(_ context.Context, _, _ time.Time) ([]Use, error) { return nil, nil }

func service(t testing.TB, rules ...Rule) *Service {
	s := New(storedRules{rules: rules}, nil)
	s.now = func() time.Time { return start }
	if err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

func proposal(kind fleet.PrincipalKind, tool string) *call.Proposal {
	return &call.Proposal{Principal: fleet.Principal{Kind: kind, ID: "7", Name: "script", Role: fleet.RoleOperator},
		Device: &fleet.Device{ID: "a085e3112233", Name: "Kitchen", Board: "AtomS3R", Version: "2.4", Tags: []string{"site-x",
			"Lab"}}, Tool: fleet.Tool{Name: tool, Audience: fleet.AudienceModel}, At: start,
		Arguments: json.RawMessage(`{"volume":40}`)}
}

// The allocations of a judgement do not grow with rules that do not apply.
func TestJudgeAllocatesTheSameWithMoreRules(t *testing.T) {
	for name, rules := range map[string]func(int) []Rule{"office": officeRules, "sites": siteRules} {
		allocations := func(n int) float64 {
			s, p := service(t, rules(n)...), proposal(fleet.KindProgram, "self.audio_speaker.set_volume")
			return testing.AllocsPerRun(100, func() {
				if v := s.Judge(p); v.Decision != call.DecisionAllow || v.RuleName != "volume" {
					t.Fatalf("%+v", v)
				}
			})
		}
		few, many := allocations(5), allocations(400)
		if many > few || many > 4 {
			t.Errorf("%s: %v allocations with 400 rules, %v with 5", name, many, few)
		}
	}
}

func BenchmarkJudge(b *testing.B) {
	for name, rules := range map[string][]Rule{"office200": officeRules(200), "sites200": siteRules(200), "one": officeRules(0)} {
		b.Run(name, func(b *testing.B) {
			s, p := service(b, rules...), proposal(fleet.KindProgram, "self.audio_speaker.set_volume")
			b.ReportAllocs()
			for b.Loop() {
				if v := s.Judge(p); v.Decision != call.DecisionAllow {
					b.Fatal(v)
				}
			}
		})
	}
	rules := officeRules(200)
	rules[len(rules)-1].RatePerMinute, rules[len(rules)-1].DailyBudget = MaxRate, MaxBudget
	b.Run("limited", func(b *testing.B) {
		s, p := service(b, rules...), proposal(fleet.KindProgram, "self.audio_speaker.set_volume")
		s.meter.follow(true, start)
		for b.Loop() {
			p.At = p.At.Add(10 * time.Millisecond)
			s.Judge(p)
		}
	})
}

func TestSchemaKeepsItsMeaning(t *testing.T) {
	r := Rule{Name: "x", Decision: call.DecisionAllow, Arguments: json.RawMessage(` {"required":["b"], "maxProperties": 3 } `)}
	if err := r.Clean(); err != nil || !bytes.Equal(r.Arguments, []byte(`{"maxProperties":3,"required":["b"]}`)) {
		t.Errorf("%s, %v", r.Arguments, err)
	}
}
