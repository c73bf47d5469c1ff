package postgres

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

// failureSample is how many devices are listed as examples of a group of failures.
const failureSample = 5

// countDeployments reads each deployment of a campaign once. Outcomes of the
// hour before $3 are grouped by minute.
const countDeployments = `
	SELECT state, wave, board, reached, skip, class, late,
		CASE WHEN finished_at > $2 AND finished_at <= $3 THEN date_bin('1 minute', finished_at, '2000-01-01') END
			AS minute, count(*) AS count, max(deadline) AS deadline
	FROM deployments WHERE campaign_id = $1 GROUP BY 1, 2, 3, 4, 5, 6, 7, 8`

type progressRow struct {
	State    campaign.DeploymentState
	Wave     int
	Board    string
	Reached  int16
	Skip     firmware.SkipReason
	Class    campaign.FailureClass
	Late     bool
	Minute   *time.Time
	Count    int
	Deadline *time.Time
}

// CampaignProgress counts the deployments of a campaign by state. The rate is that of the last
// hour or, if the campaign has ended, of its last hour.
func (s *Store) CampaignProgress(ctx context.Context, campaignID uuid.UUID) (campaign.Progress, error) {
	p := campaign.Progress{ByState: map[campaign.DeploymentState]int{},
		ByBoard: map[string]map[campaign.DeploymentState]int{},
		Reached: map[campaign.FunnelStep]int{}}
	until := time.Now()
	var waves int
	scoped, args := scopedToAll(ctx, campaignAudience, campaignID, until)
	err := s.db.QueryRow(ctx, `
		SELECT least($2, finished_at), (SELECT count(*) FROM waves WHERE campaign_id = id) FROM campaigns WHERE id = $1`+
		scoped, args...).
		Scan(&until, &waves)
	if err != nil {
		return campaign.Progress{}, fmt.Errorf("progress of campaign %s: %w", campaignID, domainError(err))
	}
	for range waves {
		p.ByWave = append(p.ByWave, map[campaign.DeploymentState]int{})
		p.SoakUntil = append(p.SoakUntil, time.Time{})
	}
	rows, _ := s.db.Query(ctx, countDeployments, campaignID, until.Add(-time.Hour), until)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[progressRow])
	if err != nil {
		return campaign.Progress{}, fmt.Errorf("progress of campaign %s: %w", campaignID, domainError(err))
	}
	failures := map[failureKey]*campaign.FailureGroup{}
	rate := map[time.Time]*campaign.RateBucket{}
	for _, r := range list {
		addProgress(&p, r)
		addFailure(failures, r)
		addOutcome(rate, r)
	}
	firmware.SortMisfits(p.Skipped)
	for _, minute := range slices.SortedFunc(maps.Keys(rate), time.Time.Compare) {
		p.Rate = append(p.Rate, *rate[minute])
	}
	if p.Failures, err = s.sampleFailures(ctx, campaignID, failures); err != nil {
		return campaign.Progress{}, err
	}
	p.Cohorts, err = s.Cohorts(ctx, campaignID)
	return p, err
}

// inOrder selects the deployments of a campaign that are part of [campaign.Cohorts].
var inOrder = `FROM deployments WHERE campaign_id = $1 AND dispatched_at IS NOT NULL AND state <> ALL ($2)`

// neutralStates are outcomes that prove nothing about the image.
var neutralStates = filtered(campaign.DeploymentStates, func(s campaign.DeploymentState) bool {
	return s.Final() && !s.Verdict()
})

// Cohorts counts the failures of a campaign by their position in the order of dispatch.
func (s *Store) Cohorts(ctx context.Context, campaignID uuid.UUID) (campaign.Cohorts, error) {
	c := campaign.Cohorts{ByWave: map[int]int{}, ByBoard: map[string]int{}}
	rows, _ := s.db.Query(ctx, `SELECT wave, board, count(*) AS count, count(*) FILTER (WHERE state = ANY ($3)) AS failed `+
		inOrder+` GROUP BY wave, board`, campaignID, neutralStates, failedStates)
	var wave, count, failed, failures int
	var board string
	_, err := pgx.ForEachRow(rows, []any{&wave, &board, &count, &failed}, func() error {
		c.Size += count
		c.ByWave[wave] += count
		c.ByBoard[board] += count
		failures += failed
		return nil
	})
	if err == nil && failures > 0 {
		rows, _ = s.db.Query(ctx, `
			SELECT state, wave, board, finished_at AS at, in_campaign, in_wave, in_board FROM (
				SELECT state, wave, board, finished_at,
					row_number() OVER (ORDER BY dispatched_at, id) AS in_campaign,
					row_number() OVER (PARTITION BY wave ORDER BY dispatched_at, id) AS in_wave,
					row_number() OVER (PARTITION BY board ORDER BY dispatched_at, id) AS in_board `+inOrder+`) AS o
			WHERE state = ANY ($3) ORDER BY in_campaign`, campaignID, neutralStates, failedStates)
		c.Failures, err = pgx.CollectRows(rows, pgx.RowToStructByName[campaign.CohortFailure])
	}
	if err != nil {
		return campaign.Cohorts{}, fmt.Errorf("cohorts of campaign %s: %w", campaignID, domainError(err))
	}
	return c, nil
}

// addProgress counts a deployment in every step of the funnel up to its furthest. Deployments
// skipped at planning count in none.
func addProgress(p *campaign.Progress, r progressRow) {
	p.ByState[r.State] += r.Count
	if r.Wave >= 0 {
		for _, step := range campaign.FunnelSteps[:r.Reached+1] {
			p.Reached[step] += r.Count
		}
		if r.Wave < len(p.ByWave) {
			p.ByWave[r.Wave][r.State] += r.Count
			if r.State == campaign.DeploymentVerifying && r.Deadline != nil && r.Deadline.After(p.SoakUntil[r.Wave]) {
				p.SoakUntil[r.Wave] = *r.Deadline
			}
		}
		if p.ByBoard[r.Board] == nil {
			p.ByBoard[r.Board] = map[campaign.DeploymentState]int{}
		}
		p.ByBoard[r.Board][r.State] += r.Count
	}
	if r.Skip != firmware.SkipNone {
		addSkipped(p, r)
	}
	if r.Late {
		p.Late += r.Count
	}
}

// addSkipped counts skipped devices by reason and board.
func addSkipped(p *campaign.Progress, r progressRow) {
	i := slices.IndexFunc(p.Skipped, func(m firmware.Misfits) bool { return m.Reason == r.Skip && m.Board == r.Board })
	if i < 0 {
		i = len(p.Skipped)
		p.Skipped = append(p.Skipped, firmware.Misfits{Reason: r.Skip, Board: r.Board})
	}
	p.Skipped[i].Count += r.Count
}

type failureKey struct {
	state campaign.DeploymentState
	class campaign.FailureClass
}

func addFailure(failures map[failureKey]*campaign.FailureGroup, r progressRow) {
	if !r.State.Failed() {
		return
	}
	key := failureKey{r.State, r.Class}
	if failures[key] == nil {
		failures[key] = &campaign.FailureGroup{State: r.State, Class: r.Class}
	}
	failures[key].Count += r.Count
}

func addOutcome(rate map[time.Time]*campaign.RateBucket, r progressRow) {
	if r.Minute == nil || !r.State.Verdict() {
		return
	}
	if rate[*r.Minute] == nil {
		rate[*r.Minute] = &campaign.RateBucket{At: *r.Minute}
	}
	if r.State.Failed() {
		rate[*r.Minute].Failed += r.Count
	} else {
		rate[*r.Minute].Succeeded += r.Count
	}
}

// sampleFailures adds the most recently failed devices to each group.
func (s *Store) sampleFailures(ctx context.Context, campaignID uuid.UUID,
	failures map[failureKey]*campaign.FailureGroup) ([]campaign.FailureGroup, error) {
	var b pgx.Batch
	var list []campaign.FailureGroup
	for _, group := range failures {
		b.Queue(`
			SELECT device_id, `+reasonColumn("", "reason")+` FROM deployments
			WHERE campaign_id = $1 AND state = $2 AND class = $3 ORDER BY finished_at DESC, device_id LIMIT $4`,
			campaignID, group.State, group.Class, failureSample).Query(func(rows pgx.Rows) error {
			var device fleet.DeviceID
			var reason fleet.Reason
			_, err := pgx.ForEachRow(rows, []any{&device, &reason}, func() error {
				if group.Reason.Is("") {
					group.Reason = reason
				}
				reason = fleet.Reason{}
				group.Sample = append(group.Sample, device)
				return nil
			})
			list = append(list, *group)
			return err
		})
	}
	if err := s.db.SendBatch(ctx, &b).Close(); err != nil {
		return nil, fmt.Errorf("failures of campaign %s: %w", campaignID, domainError(err))
	}
	slices.SortFunc(list, func(a, b campaign.FailureGroup) int {
		return cmp.Or(b.Count-a.Count, cmp.Compare(a.State, b.State), cmp.Compare(a.Class, b.Class))
	})
	return list, nil
}
