/* Adapters. Each has a domain of its own: that of adapter 0 has the name of the manner, the others
 * have their number after it. */
#include <stdio.h>

#include "testprov.h"

int tp_nic_domain(const struct tp_manner *m, long number, char *name, size_t len)
{
	if (number)
		return snprintf(name, len, "%s%ld", m->name, number);
	return snprintf(name, len, "%s", m->name);
}

/* Returns the number of the adapter whose domain has the name, or -1. */
long tp_nic_of(const struct tp_manner *m, const char *domain)
{
	char name[32];

	for (long i = 0; i < TP_NICS; i++) {
		tp_nic_domain(m, i, name, sizeof name);
		if (!strcmp(domain, name))
			return i;
	}
	return -1;
}

static int nic_close(struct fid *fid)
{
	struct fid_nic *nic = container_of(fid, struct fid_nic, fid);

	free(nic->device_attr->name);
	free(nic->device_attr);
	free(nic->bus_attr);
	free(nic->link_attr);
	free(nic);
	return 0;
}

/* fi_dupinfo: copies the description. */
static int nic_control(struct fid *fid, int command, void *arg)
{
	struct fid_nic *nic = container_of(fid, struct fid_nic, fid);

	if (command != FI_DUP)
		return -FI_ENOSYS;
	*(struct fid_nic **) arg = tp_nic_new(nic->bus_attr->attr.pci.bus_id);
	return *(struct fid_nic **) arg ? 0 : -FI_ENOMEM;
}

/* Returns the description of an adapter, or NULL if there is no memory. Its place on the PCI bus is one
 * where no machine has a device. */
struct fid_nic *tp_nic_new(long number)
{
	static struct fi_ops ops = {
		.size = sizeof ops, .close = nic_close, .bind = tp_no_bind,
		.control = nic_control, .ops_open = tp_no_ops_open,
	};
	struct fid_nic *nic = calloc(1, sizeof *nic);
	char name[32];

	if (!nic)
		return NULL;
	nic->fid = (struct fid){FI_CLASS_NIC, NULL, &ops};
	nic->device_attr = calloc(1, sizeof *nic->device_attr);
	nic->bus_attr = calloc(1, sizeof *nic->bus_attr);
	nic->link_attr = calloc(1, sizeof *nic->link_attr);
	snprintf(name, sizeof name, "nic%ld", number);
	if (nic->device_attr)
		nic->device_attr->name = strdup(name);
	if (!nic->device_attr || !nic->bus_attr || !nic->link_attr || !nic->device_attr->name) {
		if (nic->device_attr)
			free(nic->device_attr->name);
		free(nic->device_attr);
		free(nic->bus_attr);
		free(nic->link_attr);
		free(nic);
		return NULL;
	}
	nic->bus_attr->bus_type = FI_BUS_PCI;
	nic->bus_attr->attr.pci = (struct fi_pci_attr){.domain_id = 0xfffe, .bus_id = (uint8_t) number};
	nic->link_attr->state = FI_LINK_UP;
	return nic;
}
