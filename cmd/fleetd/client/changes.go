package client

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// A ChangesCommand sums up what happened lately.
type ChangesCommand struct {
	clientFlags
	Since string `help:"How long before now the time begins: 15m, 1h, 6h or 1d." enum:"15m,1h,6h,1d" default:"1h"`
}

func (c *ChangesCommand) Run(ctx context.Context) error {
	return ask(ctx, &c.clientFlags, "/changes", url.Values{"since": {c.Since}},
		func(Changes) string { return "CHANGE COUNT DETAIL" }, Changes.rows)
}

// rows returns a row for each kind of change that happened.
func (v Changes) rows() [][]string {
	rows := [][]string{{"(since)", "", v.Since.Format(time.DateTime)}}
	if v.ComparedFrom.After(v.Since) {
		rows = append(rows, []string{"(history since)", "", v.ComparedFrom.Format(time.DateTime)})
	}
	add := func(change string, n int64, detail string) {
		if n != 0 {
			rows = append(rows, []string{change, strconv.FormatInt(n, 10), detail})
		}
	}
	add("added", v.ByField["added"], "")
	add("removed", v.ByField["removed"], "")
	add("went offline", v.WentOffline, "")
	add("offline now", v.Away.Devices, v.Away.Q)
	add("came online", v.CameOnline, "")
	add("crashed", v.Crashed.Devices, v.Crashed.Q)
	add("alerts began", v.AlertsBegan, "")
	add("alerts ended", v.AlertsEnded, "")
	add("new build", v.Rebuilt, "")
	add("updated", v.Updated, "")
	add("not updated", v.NotUpdated, "")
	for _, i := range v.Versions {
		rows = append(rows, []string{"version " + i.Version, fmt.Sprintf("%+d", i.Now-i.Before),
			fmt.Sprintf("%d -> %d", i.Before, i.Now)})
	}
	for _, field := range []string{"tags", "name", "hold", "enrolment", "board", "tools"} {
		add(field+" changed", v.ByField[field], "")
	}
	ids, more := strings.Join(v.Configured.Devices, ","), ""
	if v.Configured.More {
		more = ", and more"
	}
	add("configured", int64(len(v.Configured.Devices)), ids+more)
	add("calls", v.Calls, "")
	add("failed calls", v.FailedCalls, "")
	add("acts", v.ActsTotal, "")
	for _, a := range v.Acts {
		add(a.Action, a.Count, strings.Join(a.Actors, ", "))
	}
	return rows
}
