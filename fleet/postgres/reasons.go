package postgres

import (
	"fmt"

	"fleetd/fleet"
)

// reasonColumn reads the columns of a reason, such as reason_code and
// reason_params, as one value with the name.
func reasonColumn(table, name string) string {
	code, params := table+name+"_code", table+name+"_params"
	return fmt.Sprintf("CASE WHEN %s <> '' THEN jsonb_build_object('code', %s, 'params', %s) ELSE '{}' END AS %s", code, code, params,
		name)
}

// reasonParams returns the stored form of a reason's parameters, null if there are none.
func reasonParams(r fleet.Reason) *string {
	if len(r.Params) == 0 {
		return nil
	}
	return storableJSON(r.Params)
}
