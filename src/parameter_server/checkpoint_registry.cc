#include "parameter_server/checkpoint_registry.h"

#include <utility>

#include "base/strings.h"
#include "checkpoint/digest.h"
#include "parameter_server/field_pool_metas.h"
#include "parameter_server/foreign_owners.h"
#include "parameter_server/metas_json.h"

namespace ckpt {

RegistrationContext CheckpointRegistry::context() {
  return {device_,        job_.transport(), job_.leases(),    shared_pool_,
          reclaimer_,     job_.rank(),      registrations_,   job_.host_id(),
          job_.network(), threads_,         timeout_seconds_, reader_patience_seconds_};
}

Status CheckpointRegistry::add(const std::string& name, const Registration& part,
                               AbortSignal* abort) {
  if (name.empty()) return invalid_argument("a checkpoint needs a name").on_rank(job_.rank());
  if (checkpoints_.contains(name)) {
    return already_exists(
               concat("checkpoint ", quoted(name), " is registered already; unregister it first"))
        .on_rank(job_.rank());
  }
  ++registrations_;
  auto registered = RegisteredCheckpoint::create(name, part, context(), abort);
  if (!registered) {
    return registered.status()
        .with_context(concat("checkpoint ", quoted(name)))
        .on_rank(job_.rank());
  }
  checkpoints_.emplace(name, std::move(*registered));
  return Status();
}

Status CheckpointRegistry::remove(const std::string& name, bool force) {
  if (catalog_ && !loaded_ && catalog_->metas().checkpoint_name == name) catalog_.reset();
  if (offered_ && offered_->metas().checkpoint_name == name) {
    offered_.reset();
    offered_copy_.reset();
    return Status();
  }
  const auto at = checkpoints_.find(name);
  if (at == checkpoints_.end()) {
    if (force) return Status();
    return not_found(concat("checkpoint ", quoted(name), " is not registered"))
        .on_rank(job_.rank());
  }
  const bool frees_shared_pool = force && at->second->uses_shared_pool();
  checkpoints_.erase(at);
  if (frees_shared_pool) shared_pool_.release();
  return Status();
}

const RegisteredCheckpoint* CheckpointRegistry::find(const std::string& name) const {
  const auto at = checkpoints_.find(name);
  return at == checkpoints_.end() ? nullptr : at->second.get();
}

Status CheckpointRegistry::gather(const std::string& name, AbortSignal* abort) {
  const RegisteredCheckpoint* own = find(name);
  std::unique_ptr<RegisteredCheckpoint> nothing;
  if (own == nullptr) {
    // A rank without a part takes part all the same.
    RegistrationContext unreadable = context();
    unreadable.transport = nullptr;
    unreadable.epoch = 0;
    CKPT_ASSIGN_OR_RETURN(nothing, RegisteredCheckpoint::create(name, {}, unreadable));
    own = nothing.get();
  }
  RankMetas mine;
  mine.layout = own->layout();
  CKPT_ASSIGN_OR_RETURN(mine.instance, own->instance_data());
  auto catalog = exchange_.gather(job_.control(), name, std::move(mine),
                                  Deadline::after_seconds(timeout_seconds_), abort);
  if (!catalog) {
    return catalog.status()
        .with_context(concat("gather of checkpoint ", quoted(name)))
        .on_rank(job_.rank());
  }
  catalog_ = std::move(*catalog);
  loaded_.reset();
  offered_.reset();
  offered_copy_.reset();
  // Ranks come here when they have registered: no other one will open a file of ours any more.
  if (const auto at = checkpoints_.find(name); at != checkpoints_.end()) at->second->remove_files();
  return Status();
}

Status CheckpointRegistry::offer_loaded(AbortSignal* abort) {
  if (!loaded_) {
    return failed_precondition(
               "only what was loaded from another job can be offered as a copy; "
               "call load_metas on all ranks first")
        .on_rank(job_.rank());
  }
  if (are_of_field_pools(*loaded_)) {
    return unsupported(
               "what comes from the Python package checkpoint-engine has no digests, by which "
               "others could check a copy")
        .on_rank(job_.rank());
  }
  offered_.reset();
  offered_copy_.reset();
  reclaimer_.wait();
  ++registrations_;
  auto copy = OfferedCopy::create(*catalog_, job_.world_size(), context());
  // A rank that cannot offer its share says so by offering nothing, instead of keeping the others
  // waiting.
  const auto gathered = [&]() -> Status {
    RankMetas mine{std::make_shared<const Layout>(Layout::make({})), context().place()};
    mine.instance.layout_hash = mine.layout->hash;
    mine.instance.digest_algorithm = kDigestAlgorithm;
    if (copy) {
      mine.layout = (*copy)->layout();
      CKPT_ASSIGN_OR_RETURN(mine.instance, (*copy)->instance_data());
    }
    CKPT_ASSIGN_OR_RETURN(
        const auto offered,
        exchange_.gather(job_.control(), loaded_->checkpoint_name, std::move(mine),
                         Deadline::after_seconds(timeout_seconds_), abort));
    CKPT_RETURN_IF_ERROR(copy.status());
    if (offered->tensors().size() != catalog_->tensors().size()) {
      return unavailable("another rank cannot offer its share; its own error says why");
    }
    offered_ = offered;
    return Status();
  }();
  if (!gathered.is_ok()) {
    return gathered.with_context(concat("offer of checkpoint ", quoted(loaded_->checkpoint_name)))
        .on_rank(job_.rank());
  }
  offered_copy_ = std::move(*copy);
  return Status();
}

Result<std::string> CheckpointRegistry::export_metas() const {
  if (!catalog_) {
    return failed_precondition("no metas: call gather_metas first").on_rank(job_.rank());
  }
  if (offered_) return metas_to_json(offered_->metas());
  return metas_to_json(loaded_ ? *loaded_ : catalog_->metas());
}

Status CheckpointRegistry::load_metas(const std::string& json) {
  CKPT_ASSIGN_OR_RETURN(Metas metas, metas_from_json(json));
  const Transport* transport = job_.transport();
  if (are_of_field_pools(metas) && (transport == nullptr || transport->name() != "callback")) {
    return unsupported(
        "these metas are of the Python package checkpoint-engine itself, whose memory is read by "
        "Mooncake: give all ranks a transfer engine (MooncakeTransfer), or export metas from a job "
        "of this engine");
  }
  auto loaded = std::make_shared<const Metas>(std::move(metas));
  const std::string_view kind = transport ? transport->name() : std::string_view();
  CKPT_ASSIGN_OR_RETURN(catalog_, catalog_of_foreign_owners(*loaded, job_.world_size(), kind));
  loaded_ = std::move(loaded);
  offered_.reset();
  offered_copy_.reset();
  return Status();
}

}  // namespace ckpt
