package rollout

import (
	"container/list"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"golang.org/x/time/rate"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

// openCampaign is a campaign in memory: an open one, or one that ended recently and whose
// devices may still send late proof.
type openCampaign struct {
	campaign.Campaign
	waves   []campaign.Wave
	tallies tallies
	pace    *rate.Limiter

	held     map[uuid.UUID]*deployment
	ready    list.List // queued: examined when places become free
	parked   list.List // queued: their devices are unreachable
	inFlight int
	queued   int
	active   int

	picked      int         // devices about to be notified
	preparing   int         // devices whose baseline is being read
	restarting  int         // devices ordered to restart so that they poll
	stuck       map[int]int // by wave: queued deployments that their own devices block
	planChecked bool        // the rows of the waves up to the open one match the plan
	stale       bool        // another campaign's activity changed its rows
	verdictAt   time.Time   // when the wave's verdict was last stored
	judged      bool        // nothing has changed since the wave was last judged
	rulesDue    bool        // a device failed, or other rows changed, since the abort rules were last checked
	short       bool        // the rules require more dispatched devices than there were
	zones       map[*time.Location]int
	known       map[fleet.DeviceID]struct{} // continuous: devices that have a deployment in it
	grownAt     time.Time                   // continuous: when devices were last added
	checkedAt   time.Time                   // when its images were last checked
	asked       int                         // see images
	windowsAt   time.Time                   // the minute and the revision at which its windows were last checked
	windowsFor  int64
	retryAt     time.Time       // after a failure of the store
	rights      campaign.Rights // of the campaign's maker and starter, as last read
	rightsIn    int             // the turn in which rights were read
	gone        fleet.Reason    // why the campaign must stop, as of the same reading
	events      events
}

// tallies count the deployments of a campaign by state.
type tallies struct {
	ByState map[campaign.DeploymentState]int
	ByWave  []map[campaign.DeploymentState]int // by wave number
}

func newCampaign(row campaign.Campaign) *openCampaign {
	c := &openCampaign{held: make(map[uuid.UUID]*deployment), stuck: make(map[int]int),
		zones: make(map[*time.Location]int)}
	c.ready.Init()
	c.parked.Init()
	c.setRow(row)
	return c
}

// setRow replaces the row.
func (c *openCampaign) setRow(row campaign.Campaign) {
	pace := c.Plan.MaxPerMinute
	c.planChecked = c.planChecked && c.State == row.State
	c.Campaign = row
	c.judged, c.rulesDue, c.rightsIn = false, true, -1
	if c.pace == nil || pace != row.Plan.MaxPerMinute {
		c.pace = newPace(row.Plan.MaxPerMinute)
	}
}

// newPace returns a limiter that spreads a minute's devices evenly over the minute.
func newPace(perMinute int) *rate.Limiter {
	if perMinute <= 0 {
		return rate.NewLimiter(rate.Inf, 0)
	}
	perSecond := float64(perMinute) / 60
	return rate.NewLimiter(rate.Limit(perSecond), max(1, int(math.Ceil(perSecond))))
}

// tokens returns how many devices the pace allows now.
func (c *openCampaign) tokens(now time.Time) int {
	if c.pace.Limit() == rate.Inf {
		return math.MaxInt
	}
	return int(c.pace.TokensAt(now))
}

// count adds n to the counts of the state.
func (c *openCampaign) count(s campaign.DeploymentState, n int) {
	if s.InFlight() {
		c.inFlight += n
	}
	if s.Active() {
		c.active += n
	}
	if s == campaign.DeploymentQueued {
		c.queued += n
	}
}

// moved updates the counts after a deployment has changed its state.
func (c *openCampaign) moved(d *deployment, from campaign.DeploymentState) {
	if from == d.State {
		return
	}
	c.count(from, -1)
	c.count(d.State, 1)
	c.tally(d.Wave, from, -1)
	c.tally(d.Wave, d.State, 1)
	c.judged = false
	c.rulesDue = c.rulesDue || d.State.Failed() || c.short
}

func (c *openCampaign) tally(wave int, s campaign.DeploymentState, n int) {
	t := &c.tallies
	add(&t.ByState, s, n)
	if wave >= 0 && wave < len(t.ByWave) {
		add(&t.ByWave[wave], s, n)
	}
}

func add(m *map[campaign.DeploymentState]int, s campaign.DeploymentState, n int) {
	if *m == nil {
		*m = make(map[campaign.DeploymentState]int)
	}
	(*m)[s] += n
}

func (c *openCampaign) failures() int {
	n := 0
	for s, count := range c.tallies.ByState {
		if s.Failed() {
			n += count
		}
	}
	return n
}

// open returns the number of deployments without an outcome, including those whose wave has not
// opened.
func (c *openCampaign) open() int {
	n := 0
	for s, count := range c.tallies.ByState {
		if !s.Final() {
			n += count
		}
	}
	return n
}

// wave returns the open wave, or nil before the first.
func (c *openCampaign) wave() *campaign.Wave {
	if c.Wave < 0 || c.Wave >= len(c.waves) {
		return nil
	}
	return &c.waves[c.Wave]
}

func (c *openCampaign) lastWave() bool { return c.Wave >= len(c.waves)-1 }

// more reports whether devices come after the open wave: without them a gate has nothing to let
// through.
func (c *openCampaign) more() bool {
	return c.Plan.Continuous || slices.ContainsFunc(c.waves[c.Wave+1:], func(w campaign.Wave) bool { return w.Size > 0 })
}

// soak returns how long a device of the wave must stay healthy.
func (c *openCampaign) soak(wave int) time.Duration {
	if wave >= 0 && wave < len(c.waves) {
		return c.waves[wave].Plan.Soak
	}
	return 0
}

// actor returns the campaign as the principal of calls and audit entries.
func (c *openCampaign) actor() fleet.Principal {
	return fleet.Principal{Kind: fleet.KindCampaign, ID: c.ID.String(), Name: c.Plan.Name, Role: fleet.RoleOperator}
}

// byDeviceTime reports whether a window follows the devices' own time zones.
func (c *openCampaign) byDeviceTime() bool {
	for _, w := range c.Plan.Windows {
		if w.TimeZone == campaign.DeviceZone {
			return true
		}
	}
	return false
}
