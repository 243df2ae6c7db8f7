/* Address vectors. In a table, the fi_addr_t of an entry is its index; in a map it is another
 * number, so that a caller that takes it for an index fails. */
#include <arpa/inet.h>
#include <stdio.h>

#include "testprov.h"

#define MAP_BASE 0x7fa000000000ULL

static fi_addr_t address_of(const struct tp_av *av, size_t index)
{
	return av->type == FI_AV_MAP ? MAP_BASE + index * 16 : index;
}

/* Returns the entry with the fi_addr_t at, or NULL if there is none. */
struct tp_av_entry *tp_av_find(struct tp_av *av, fi_addr_t at)
{
	size_t index = (size_t) at;

	if (av->type == FI_AV_MAP) {
		if (at < MAP_BASE || at % 16)
			return NULL;
		index = (size_t) (at - MAP_BASE) / 16;
	}
	return index < av->count && av->entries[index].used ? &av->entries[index] : NULL;
}

/* Returns the fi_addr_t of addr, or FI_ADDR_NOTAVAIL if the vector lacks addr. */
fi_addr_t tp_av_reverse(struct tp_av *av, const struct tp_addr *addr)
{
	for (size_t i = 0; i < av->count; i++)
		if (av->entries[i].used && av->entries[i].addr.ip == addr->ip && av->entries[i].addr.port == addr->port)
			return address_of(av, i);
	return FI_ADDR_NOTAVAIL;
}

static int add(struct tp_av *av, const struct tp_addr *addr, fi_addr_t *at)
{
	if (av->count == av->capacity) {
		size_t more = av->capacity ? 2 * av->capacity : 16;
		struct tp_av_entry *e = realloc(av->entries, more * sizeof *e);

		if (!e)
			return -FI_ENOMEM;
		av->entries = e;
		av->capacity = more;
	}
	av->entries[av->count] = (struct tp_av_entry){.addr = *addr, .used = true};
	if (at)
		*at = address_of(av, av->count);
	av->count++;
	return 0;
}

/* Inserts the address number i of a call, or records that it cannot be inserted (rc). Returns
 * whether it was inserted. */
static bool insert(struct tp_av *av, int rc, const struct tp_addr *addr, fi_addr_t *at, size_t i,
		   uint64_t flags, void *context)
{
	if (!rc)
		rc = add(av, addr, at ? &at[i] : NULL);
	if (rc && at)
		at[i] = FI_ADDR_NOTAVAIL;
	if (flags & FI_SYNC_ERR)
		((int *) context)[i] = -rc;
	return !rc;
}

/* Ends an insertion of which done succeeded. With FI_EVENT the result is an event instead. */
static int inserted(struct tp_av *av, int done, void *context)
{
	if (!(av->flags & FI_EVENT))
		return done;
	tp_eq_put(av->eq, FI_AV_COMPLETE, &av->fid.fid, context, (uint64_t) done);
	return 0;
}

static int av_insert(struct fid_av *fid, const void *addr, size_t count, fi_addr_t *at, uint64_t flags,
		     void *context)
{
	struct tp_av *av = container_of(fid, struct tp_av, fid);
	const uint32_t format = av->domain->info->addr_format;
	int done = 0;

	if (av->flags & FI_EVENT && !av->eq)
		return -FI_ENOEQ;
	tp_lock(av->domain);
	for (size_t i = 0; i < count; i++) {
		const char *raw = (const char *) addr + i * TP_ADDR_SIZE;
		struct tp_addr a;
		bool valid = tp_addr_get(format, raw, TP_ADDR_SIZE, &a) && a.port;

		done += insert(av, valid ? 0 : -FI_EINVAL, &a, at, i, flags, context);
	}
	tp_unlock(av->domain);
	return inserted(av, done, context);
}

static int av_insertsym(struct fid_av *fid, const char *node, size_t nodes, const char *service,
			size_t services, fi_addr_t *at, uint64_t flags, void *context)
{
	struct tp_av *av = container_of(fid, struct tp_av, fid);
	struct tp_addr first;
	int done = 0, rc = tp_addr_parse(node, service, &first);

	if (av->flags & FI_EVENT && !av->eq)
		return -FI_ENOEQ;
	if (rc || !node || !service || !first.port || first.port + services - 1 > UINT16_MAX)
		return -FI_EINVAL;
	tp_lock(av->domain);
	for (size_t n = 0, i = 0; n < nodes; n++) {
		for (size_t s = 0; s < services; s++, i++) {
			struct tp_addr a = {first.ip + (uint32_t) n, first.port + (uint32_t) s};

			done += insert(av, 0, &a, at, i, flags, context);
		}
	}
	tp_unlock(av->domain);
	return inserted(av, done, context);
}

static int av_insertsvc(struct fid_av *fid, const char *node, const char *service, fi_addr_t *at,
			uint64_t flags, void *context)
{
	return av_insertsym(fid, node, 1, service, 1, at, flags, context);
}

static int av_remove(struct fid_av *fid, fi_addr_t *at, size_t count, uint64_t flags)
{
	struct tp_av *av = container_of(fid, struct tp_av, fid);
	int rc = 0;

	if (flags)
		return -FI_EINVAL;
	tp_lock(av->domain);
	for (size_t i = 0; i < count; i++) {
		struct tp_av_entry *e = tp_av_find(av, at[i]);

		if (e)
			e->used = false;
		else
			rc = -FI_EINVAL;
	}
	while (av->count && !av->entries[av->count - 1].used)
		av->count--; /* the next insertion takes their places */
	tp_unlock(av->domain);
	return rc;
}

static int av_lookup(struct fid_av *fid, fi_addr_t at, void *addr, size_t *len)
{
	struct tp_av *av = container_of(fid, struct tp_av, fid);
	uint8_t raw[TP_ADDR_SIZE];
	struct tp_av_entry *e;

	tp_lock(av->domain);
	e = tp_av_find(av, at);
	if (e) {
		tp_addr_put(av->domain->info->addr_format, &e->addr, raw);
		memcpy(addr, raw, *len < sizeof raw ? *len : sizeof raw);
		*len = sizeof raw;
	}
	tp_unlock(av->domain);
	return e ? 0 : -FI_EINVAL;
}

static const char *av_straddr(struct fid_av *fid, const void *addr, char *buf, size_t *len)
{
	struct tp_av *av = container_of(fid, struct tp_av, fid);
	struct tp_addr a;
	struct in_addr ip;
	char text[INET_ADDRSTRLEN];

	if (!tp_addr_get(av->domain->info->addr_format, addr, TP_ADDR_SIZE, &a))
		return NULL;
	ip.s_addr = htonl(a.ip);
	inet_ntop(AF_INET, &ip, text, sizeof text);
	*len = (size_t) snprintf(buf, *len, "%s:%u", text, a.port) + 1;
	return buf;
}

static int no_av_set(struct fid_av *av, struct fi_av_set_attr *attr, struct fid_av_set **set, void *context)
{
	(void) av, (void) attr, (void) set, (void) context;
	return -FI_ENOSYS;
}

static int av_bind(struct fid *fid, struct fid *with, uint64_t flags)
{
	struct tp_av *av = container_of(fid, struct tp_av, fid.fid);

	if (with->fclass != FI_CLASS_EQ || flags || !(av->flags & FI_EVENT))
		return -FI_EINVAL;
	av->eq = container_of(with, struct tp_eq, fid.fid);
	return 0;
}

static int av_close(struct fid *fid)
{
	struct tp_av *av = container_of(fid, struct tp_av, fid.fid);

	if (av->refs)
		return -FI_EBUSY;
	tp_lock(av->domain);
	av->domain->refs--;
	tp_unlock(av->domain);
	free(av->entries);
	free(av);
	return 0;
}

int tp_av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av, void *context)
{
	static struct fi_ops fid_ops = {
		.size = sizeof fid_ops, .close = av_close, .bind = av_bind,
		.control = tp_no_control, .ops_open = tp_no_ops_open,
	};
	static struct fi_ops_av ops = {
		.size = sizeof ops, .insert = av_insert, .insertsvc = av_insertsvc,
		.insertsym = av_insertsym, .remove = av_remove, .lookup = av_lookup,
		.straddr = av_straddr, .av_set = no_av_set,
	};
	struct tp_domain *d = container_of(domain, struct tp_domain, fid);
	enum fi_av_type type = attr && attr->type ? attr->type : d->info->domain_attr->av_type;
	struct tp_av *a;

	if (attr && (attr->name || attr->flags & ~(FI_EVENT | FI_SYMMETRIC)))
		return -FI_ENOSYS;
	if (d->script.m.av_type && type && (int) type != d->script.m.av_type)
		return -FI_ENOSYS;
	a = calloc(1, sizeof *a);
	if (!a)
		return -FI_ENOMEM;
	a->fid.fid = (struct fid){FI_CLASS_AV, context, &fid_ops};
	a->fid.ops = &ops;
	a->domain = d;
	a->type = type ? type : d->script.m.av_type ? (enum fi_av_type) d->script.m.av_type : FI_AV_TABLE;
	a->flags = attr ? attr->flags : 0;
	if (attr)
		attr->type = a->type;
	tp_lock(d);
	d->refs++;
	tp_unlock(d);
	*av = &a->fid;
	return 0;
}
