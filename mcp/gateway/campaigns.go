package gateway

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/google/uuid"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
	"fleetd/fleet/heavy"
)

type campaignOut struct {
	ID        uuid.UUID      `json:"id"`
	Name      string         `json:"name"` // chosen by a person or a program
	State     campaign.State `json:"state"`
	Release   string         `json:"release,omitempty"` // id
	Query     string         `json:"q,omitempty"`
	Mode      string         `json:"mode"`
	Targets   int            `json:"targets"` // devices that get an image
	Skipped   int            `json:"skipped"` // devices that matched but were left out
	Wave      int            `json:"wave"`    // the open wave, counted from 0
	Waves     int            `json:"waves"`
	Reason    *reasonOut     `json:"reason,omitempty"` // why it is paused, denied or aborted
	CreatedBy string         `json:"created_by"`
	CreatedAt time.Time      `json:"created_at"`
	StartedAt *time.Time     `json:"started_at,omitempty"`
	Finished  *time.Time     `json:"finished_at,omitempty"`
	Counts    map[string]int `json:"counts,omitempty"` // number of devices in each deployment state
}

func (g *Gateway) campaign(c campaign.Campaign) campaignOut {
	v := campaignOut{ID: c.ID, Name: fleet.CleanText(c.Plan.Name, 200), State: c.State, Query: c.Plan.Query,
		Mode: string(c.Plan.Mode), Targets: c.Targets, Skipped: c.Skipped, Wave: c.Wave, Waves: len(c.Plan.Waves),
		CreatedBy: c.CreatedBy.Name, CreatedAt: c.CreatedAt.UTC(), StartedAt: utc(c.StartedAt), Finished: utc(c.FinishedAt)}
	if c.Plan.Release != uuid.Nil {
		v.Release = c.Plan.Release.String()
	}
	if c.Reason.Code != "" {
		r := g.reason(c.Reason)
		v.Reason = &r
	}
	return v
}

func (v campaignOut) line() string {
	line := fmt.Sprintf("%s %q %s, %s, wave %d of %d", v.ID, v.Name, v.State, count(v.Targets, "device"), v.Wave+1, v.Waves)
	if v.Reason != nil {
		line += ": " + v.Reason.Text
	}
	return line
}

type listCampaignsIn struct {
	States []string `json:"states,omitempty" jsonschema:"only in one of these states"`
	Limit  int      `json:"limit,omitempty" jsonschema:"maximum campaigns in the answer; default 20"`
	Cursor string   `json:"cursor,omitempty" jsonschema:"next_cursor of the previous answer"`
}

type listCampaignsOut struct {
	Campaigns []campaignOut `json:"campaigns"` // newest first
	Next      string        `json:"next_cursor,omitempty"`
}

type proposeIn struct {
	Name         string         `json:"name" jsonschema:"name of the campaign"`
	Release      string         `json:"release" jsonschema:"id or version of a release"`
	Query        *string        `json:"q,omitempty" jsonschema:"query for the devices, as in find_devices"`
	Devices      []string       `json:"devices,omitempty" jsonschema:"ids of devices, instead of q"`
	Mode         string         `json:"mode,omitempty" jsonschema:"push calls a tool, pull offers the image at the next boot; auto, the default, prefers push"`
	Waves        []waveIn       `json:"waves,omitempty" jsonschema:"steps, each judged before the next; default: canary 1 %, early 10 %, rest"`
	MaxInFlight  int            `json:"max_in_flight,omitempty" jsonschema:"maximum devices in flight at once; default 10"`
	HealthChecks []healthCallIn `json:"health_checks,omitempty" jsonschema:"calls that must succeed after the update"`
	DryRun       bool           `json:"dry_run,omitempty" jsonschema:"only report what the campaign would do"`
}

type waveIn struct {
	Name    string  `json:"name,omitempty"`
	Percent float64 `json:"percent" jsonschema:"share of the devices that have had their turn after this wave"`
	SoakMs  *int64  `json:"soak_ms,omitempty" jsonschema:"how long each device must stay healthy"`
	Manual  bool    `json:"manual,omitempty" jsonschema:"a person opens the next wave"`
}

type healthCallIn struct {
	Tool      string `json:"tool"`
	Arguments object `json:"arguments,omitempty"`
}

type proposeOut struct {
	Campaign *campaignOut `json:"campaign,omitempty"` // the draft; left out by a dry run
	Matched  int          `json:"matched"`
	Targets  int          `json:"targets"`
	Offline  int          `json:"offline"` // targets that are not connected now
	Waves    []waveOut    `json:"waves"`
	LeftOut  []misfitsOut `json:"left_out"`
	Warnings []warningOut `json:"warnings"`
}

type waveOut struct {
	Name string `json:"name"`
	Size int    `json:"devices"`
}

// misfitsOut counts the devices of one board, or of one board and chip, that are left out
// for one reason.
type misfitsOut struct {
	Code   string           `json:"code"`
	Board  string           `json:"board,omitempty"` // empty if the devices report none
	Chip   string           `json:"chip,omitempty"`  // if the reason concerns the chip
	Count  int              `json:"count"`
	Sample []fleet.DeviceID `json:"sample,omitempty"`
}

type warningOut struct {
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

func (g *Gateway) addCampaignTools(s *mcp.Server) {
	add[listCampaignsIn, listCampaignsOut](g, s, definition{name: "list_campaigns", models: fleet.ModelsMay,
		title: "List campaigns", effect: reads,
		about: "Lists firmware campaigns, newest first, with their progress.",
		limits: map[string]func(*jsonschema.Schema){"limit": between(1, maxFound), "cursor": longest(1000),
			"states": func(s *jsonschema.Schema) { oneOf(campaign.States...)(s.Items) }}}, g.listCampaigns)
	add[proposeIn, proposeOut](g, s, definition{name: "propose_campaign", models: fleet.ModelsMay,
		title: "Propose a campaign", effect: writes, heavy: heavy.Preview,
		about: "Plans a firmware campaign and stores it as a draft. It never starts one: a person reviews the draft and " +
			"starts it. Requires the role operator. Use dry_run first.",
		limits: map[string]func(*jsonschema.Schema){"name": longest(200), "release": longest(80), "q": longest(1024),
			"mode":          oneOf(firmware.ModeAuto, firmware.ModePush, firmware.ModePull),
			"max_in_flight": between(0, 1_000_000)}}, g.proposeCampaign)
}

func (g *Gateway) listCampaigns(ctx context.Context, _ fleet.Principal, _ *mcp.CallToolRequest,
	in listCampaignsIn) (answer, error) {
	f := campaign.Filter{Limit: cmp.Or(in.Limit, 20), Cursor: in.Cursor}
	for _, s := range in.States {
		f.States = append(f.States, campaign.State(s))
	}
	page, err := g.o.Campaigns.Campaigns(ctx, f)
	if err != nil {
		return answer{}, err
	}
	out := listCampaignsOut{Campaigns: []campaignOut{}, Next: page.Next}
	lines := []string{count(len(page.Items), "campaign") + ":"}
	for _, c := range page.Items {
		v := g.campaign(c)
		if c.StartedAt != nil {
			p, err := g.o.Campaigns.CampaignProgress(ctx, c.ID)
			if err != nil {
				return answer{}, err
			}
			v.Counts = map[string]int{}
			for state, n := range p.ByState {
				v.Counts[string(state)] = n
			}
		}
		out.Campaigns = append(out.Campaigns, v)
		lines = append(lines, "- "+v.line())
	}
	if page.Next != "" {
		lines = append(lines, "More follow: call again with cursor="+page.Next)
	}
	return answer{text: strings.Join(lines, "\n"), out: out}, nil
}

// release returns the release with this id, or with this version among the latest.
func (g *Gateway) release(ctx context.Context, name string) (firmware.Release, error) {
	if id, err := uuid.Parse(name); err == nil {
		return g.o.Firmware.Release(ctx, id)
	}
	page, err := g.o.Firmware.Releases(ctx, firmware.ReleaseFilter{Limit: fleet.MaxLimit})
	if err != nil {
		return firmware.Release{}, err
	}
	var versions []string
	for _, r := range page.Items {
		if r.Version == name {
			return r, nil
		}
		versions = append(versions, r.Version)
	}
	return firmware.Release{}, fleet.Refuse(fleet.ErrNotFound, "mcp_unknown_release", "release",
		name, "versions", strings.Join(versions[:min(10, len(versions))], ", ")).
		At("release")
}

func (g *Gateway) planOf(ctx context.Context, by fleet.Principal, in proposeIn) (campaign.Plan, error) {
	p := campaign.DefaultPlan()
	p.Name = in.Name
	if (in.Query == nil) == (len(in.Devices) == 0) {
		return p, fleet.Refuse(fleet.ErrInvalid, "audience_missing")
	}
	if in.Query != nil {
		p.Query = *in.Query
	}
	for _, s := range in.Devices {
		id, err := fleet.ParseDeviceID(s)
		if err != nil {
			return p, err
		}
		p.Devices = append(p.Devices, id)
	}
	if len(p.Devices) > 0 {
		if _, err := g.seen(ctx, by, p.Devices); err != nil {
			return p, err
		}
	}
	r, err := g.release(ctx, in.Release)
	if err != nil {
		return p, err
	}
	p.Release = r.ID
	p.Mode = firmware.DispatchMode(cmp.Or(in.Mode, string(p.Mode)))
	p.MaxInFlight = cmp.Or(in.MaxInFlight, p.MaxInFlight)
	usual := campaign.DefaultWaves()
	for i, w := range in.Waves {
		wave := campaign.WavePlan{Name: w.Name, Percent: w.Percent, Soak: usual[len(usual)-1].Soak, Gate: campaign.GateAuto}
		if i == 0 {
			p.Waves = nil
			if len(in.Waves) > 1 {
				wave.Soak = usual[0].Soak
			}
		}
		if w.SoakMs != nil {
			wave.Soak = time.Duration(*w.SoakMs) * time.Millisecond
		}
		if w.Manual {
			wave.Gate = campaign.GateManual
		}
		p.Waves = append(p.Waves, wave)
	}
	for _, c := range in.HealthChecks {
		p.HealthChecks = append(p.HealthChecks, campaign.HealthCheck{Tool: c.Tool, Arguments: c.Arguments})
	}
	return p, nil
}

func (g *Gateway) proposeCampaign(ctx context.Context, by fleet.Principal, _ *mcp.CallToolRequest,
	in proposeIn) (answer, error) {
	if err := by.MaySomewhere(fleet.RoleOperator, "make_campaign"); err != nil {
		return answer{}, err
	}
	p, err := g.planOf(ctx, by, in)
	if err != nil {
		return answer{}, err
	}
	dry, err := g.o.Campaigns.DryRun(ctx, by, p)
	if err != nil {
		return answer{}, err
	}
	out := proposeOut{Matched: dry.Matched, Targets: dry.Targets, Offline: dry.Offline, Waves: []waveOut{},
		LeftOut: []misfitsOut{}, Warnings: []warningOut{}}
	lines := []string{fmt.Sprintf("Dry run, nothing was stored: %s match, %d would get an image, of which %d are not connected.",
		count(dry.Matched, "device"), dry.Targets, dry.Offline)}
	if !in.DryRun {
		c, err := g.o.Campaigns.Create(context.WithoutCancel(ctx), by, p)
		if err != nil {
			return answer{}, err
		}
		v := g.campaign(c)
		out.Campaign = &v
		lines[0] = fmt.Sprintf("Draft %s is stored; a person can review and start it at %s/campaigns/%s. %s match, %d would "+
			"get an image, of which %d are not connected.", v.ID, g.public, v.ID, count(dry.Matched, "device"), dry.Targets,
			dry.Offline)
	}
	for _, w := range dry.Waves {
		out.Waves = append(out.Waves, waveOut{fleet.CleanText(w.Name, 100), w.Size})
		lines = append(lines, fmt.Sprintf("Wave %q: %s", w.Name, count(w.Size, "device")))
	}
	for _, s := range dry.Skipped {
		m := misfitsOut{string(s.Reason), fleet.CleanText(s.Board, 100), fleet.CleanText(s.Chip, 40), s.Count, s.Sample}
		out.LeftOut = append(out.LeftOut, m)
		what := fmt.Sprintf("board %q", m.Board)
		if m.Chip != "" {
			what += fmt.Sprintf(" with chip %q", m.Chip)
		}
		lines = append(lines, fmt.Sprintf("Left out, %s, %s: %s", m.Code, what, count(m.Count, "device")))
	}
	for _, w := range dry.Warnings {
		out.Warnings = append(out.Warnings, warningOut{w.Code, fleet.CleanText(w.Detail, 300)})
		lines = append(lines, "Warning "+w.Code+" "+fleet.CleanText(w.Detail, 300))
	}
	return answer{text: strings.Join(lines, "\n"), out: out}, nil
}
